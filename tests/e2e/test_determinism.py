"""The determinism matrix on a real model with 4-bit weights, where classes differ by up to 0.9."""

import pytest

from support.matrix import ASKINGS, SETTINGS, Asking, Setting, check
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.select import open_backend
from tokenmill.engine.model import LoadedModel
from tokenmill.package.load import load_package

pytestmark = pytest.mark.model

PROMPTS = [
    [1000 + (7919 * (i + 31 * n)) % 40000 for i in range(length)]
    for n, length in enumerate((9, 20, 14, 2, 17, 11, 33, 18))
]
FEW = [
    Setting(batch=False, chunk=512, preemption="none"),
    Setting(batch=True, chunk=16, preemption="swap"),
    Setting(batch=True, chunk=512, preemption="replay"),
]


def loading(directory):
    package = load_package(directory)

    def load(setting):
        config = BackendConfig(max_rows=setting.max_rows(PROMPTS), max_context=512)
        return LoadedModel(package, None, open_backend(package, config), setting.config)

    return load


def test_some_ways_of_running_give_the_same_bits(smollm2):
    check(loading(smollm2), FEW, [Asking(streamed=True, seeded=True)], PROMPTS, tokens=16)


@pytest.mark.long
def test_every_way_of_running_gives_the_same_bits(smollm2):
    check(loading(smollm2), SETTINGS, ASKINGS, PROMPTS, tokens=16)
