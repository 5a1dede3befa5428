import math

import numpy as np

from tokenmill.sampling.noise import gumbel_noise
from tokenmill.sampling.philox import philox4x32


def test_noise_follows_the_documented_formula():
    words = philox4x32((np.array([2], dtype=np.uint64), 17, 3, 0), 99)
    u = (int(words[1, 0]) + 0.5) / 2**32  # token 9: block 2, word 1
    assert gumbel_noise(np.array([9]), seed=99, position=17, choice=3)[0] == -math.log(-math.log(u))


def test_noise_of_a_token_does_not_depend_on_the_other_candidates():
    everyone = gumbel_noise(np.arange(1000), seed=7, position=3)
    some = np.array([3, 4, 5, 402, 999])
    assert (gumbel_noise(some, seed=7, position=3) == everyone[some]).all()


def test_noise_changes_with_seed_position_and_choice():
    ids = np.arange(8)
    values = {
        gumbel_noise(ids, seed=seed, position=position, choice=choice).tobytes()
        for seed in (0, 1, 2**63)
        for position in (0, 1)
        for choice in (0, 1)
    }
    assert len(values) == 12


def test_a_negative_seed_is_its_value_modulo_two_to_the_64():
    ids = np.arange(4)
    minus = gumbel_noise(ids, seed=-1, position=0)
    assert (minus == gumbel_noise(ids, seed=2**64 - 1, position=0)).all()


def test_noise_has_the_mean_and_variance_of_a_gumbel():
    noise = gumbel_noise(np.arange(200_000), seed=1, position=0)
    assert abs(noise.mean() - 0.57722) < 0.01
    assert abs(noise.var() - math.pi**2 / 6) < 0.03
