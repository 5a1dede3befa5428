"""Every block kind against the GGUF library's own dequantisation, over random bytes."""

import gguf
import numpy as np
import pytest

from tokenmill.package.gguf.blocks import BLOCK_KINDS, decode_blocks

# Where a block's float16 scales lie: random bytes there could be infinite.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
ROWS, BLOCKS = 5, 3


def random_blocks(kind, rng):
    _, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (ROWS, BLOCKS, nbytes), dtype=np.uint8)
    for offset in HALVES[kind]:
        scales = (rng.standard_normal((ROWS, BLOCKS)) * 0.1).astype(np.float16)
        raw[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(ROWS, -1)


def test_every_kind_that_is_held_is_tested():
    assert set(HALVES) == set(BLOCK_KINDS)


@pytest.mark.parametrize("kind", HALVES)
def test_a_kinds_blocks_are_decoded_exactly(kind):
    raw = random_blocks(kind, np.random.default_rng(7))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    blocks = decode_blocks(kind, raw)
    got = blocks.dequantise()
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()
    assert blocks.quants.max() < 2**blocks.bits
