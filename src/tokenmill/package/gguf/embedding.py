"""The two ends of the decoder: the look-up of token embeddings, and the head, often its twin."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.package.gguf.blocks import BlockForm, Blocks, Floats
from tokenmill.package.gguf.graph import MICROSOFT, GraphBuilder
from tokenmill.package.gguf.weights import Weights

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_SCALES = "token_embd.scales"


@dataclass(frozen=True, slots=True)
class Embedding:
    """What the head needs to know of an embedding that was written.

    Attributes:
        out: name of the embedded tokens.
        form: of its blocks; None where it is float32.
        rest: of its blocks.
    """

    out: str
    form: BlockForm | None
    rest: Floats | None


def add_embedding(
    graph: GraphBuilder, weights: Weights, vocab_size: int, hidden_size: int
) -> Embedding:
    """Writes the embedding and adds the look-up of `input_ids`."""
    out = "embedding"
    matrix = weights.matrix(EMBEDDING, vocab_size, hidden_size, is_vocabulary=True)
    if not isinstance(matrix, Blocks):
        graph.node("Gather", [graph.weight(EMBEDDING, matrix), "input_ids"], out, axis=0)
        return Embedding(out, None, None)
    quants = graph.weight(EMBEDDING, matrix.packed().reshape(vocab_size, -1))
    scales = graph.weight(_SCALES, matrix.scales)
    main = out if matrix.rest is None else f"{out}/main"
    graph.node(
        "GatherBlockQuantized",
        [quants, "input_ids", scales],
        main,
        MICROSOFT,
        bits=matrix.bits,
        block_size=matrix.block_size,
        gather_axis=0,
        quantize_axis=1,
    )
    if matrix.rest is not None:
        rest = graph.weight("token_embd.rest", matrix.rest[..., None])
        blocks = graph.constant("embedding_blocks", [0, 0, -1, matrix.block_size])
        whole = graph.constant("embedding_columns", [0, 0, hidden_size])
        graph.node("Gather", [rest, "input_ids"], f"{out}/rest", axis=0)
        graph.node("Reshape", [main, blocks], f"{out}/blocks")
        graph.node("Add", [f"{out}/blocks", f"{out}/rest"], f"{out}/sum")
        graph.node("Reshape", [f"{out}/sum", whole], out)
    return Embedding(out, matrix.form, matrix.rest)


def add_head(
    graph: GraphBuilder,
    weights: Weights,
    embedding: Embedding,
    x: str,
    vocab_size: int,
    hidden_size: int,
) -> None:
    """Adds `logits` = x @ head.T, over the embedding's own bytes where the file has no head."""
    if OUTPUT in weights:
        matrix = weights.matrix(OUTPUT, vocab_size, hidden_size, is_vocabulary=True)
        if isinstance(matrix, Blocks):
            graph.quantised_product(x, matrix, "output", "logits")
        else:
            graph.node("MatMul", [x, graph.weight(OUTPUT, matrix.T)], "logits")
        return
    form = embedding.form
    if form is None:
        transposed = graph.node("Transpose", [EMBEDDING], "output/transposed", perm=[1, 0])
        graph.node("MatMul", [x, transposed], "logits")
        return
    blocks = form.columns // form.block_size
    quants = graph.alias(EMBEDDING, OUTPUT, [form.rows, blocks, form.block_size * form.bits // 8])
    graph.stored_product(x, quants, _SCALES, embedding.rest, form, "output", "logits")
