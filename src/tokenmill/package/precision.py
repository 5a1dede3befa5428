"""A graph's precision in words, from its own operators."""

from __future__ import annotations

from collections import Counter

from tokenmill.package.onnx_file import OnnxFile

_QUANTISED = ("com.microsoft.MatMulNBits", "com.microsoft.GatherBlockQuantized")


def precision_in_words(graph: OnnxFile) -> str:
    """Returns e.g. "211 x 4-bit blocks of 32", or the type that most weight bytes have."""
    kinds: Counter[tuple[int, int]] = Counter()
    for node in graph.nodes:
        if node.operator in _QUANTISED:
            bits, block = node.attributes.get("bits", 4), node.attributes.get("block_size", 0)
            if isinstance(bits, int) and isinstance(block, int):
                kinds[bits, block] += 1
    if kinds:
        return ", ".join(
            f"{count} x {bits}-bit blocks of {block}"
            for (bits, block), count in kinds.most_common()
        )
    sizes: Counter[str] = Counter()
    for tensor in graph.initializers:
        sizes[tensor.dtype] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else "no weights"
