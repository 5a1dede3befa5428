"""Attention lengths as inputs of their own, in place of the mask they were derived from."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from tokenmill.backends.graph.names import ancestors, inputs_of, keep_nodes

_LENGTHS, _TOTAL = 5, 6
"""Inputs of GroupQueryAttention: seqlens_k and total_sequence_length."""

_PROBES = ([[1, 1, 1, 1, 1]], [[1, 1, 0, 0], [1, 1, 1, 1]], [[1], [1], [1]])
"""Masks of rows of several lengths, padded on the right."""


def direct_lengths(model: ModelProto, mask: str, lengths: str, total: str) -> bool:
    """Replaces the mask by `lengths` (int32 [batch]) and `total` (int32 scalar).

    Applies where all GroupQueryAttention nodes share their two length inputs, these are
    functions of the mask alone, equal `sum(mask) - 1` and `mask.shape[1]` (found out by
    evaluating them on a few masks, so that any spelling is recognised), and nothing else needs
    the mask.

    Returns:
        Whether it applied; the model is unchanged where not.
    """
    graph = model.graph
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    pairs = {tuple(node.input[_LENGTHS : _TOTAL + 1]) for node in nodes}
    if len(pairs) != 1:
        return False
    (pair,) = pairs
    if len(pair) != 2 or not all(pair) or not _derives_lengths(model, mask, pair):
        return False
    if _mask_is_needed(graph, mask, pair, nodes):
        return False
    for node in nodes:
        node.input[_LENGTHS], node.input[_TOTAL] = lengths, total
    live, _ = ancestors(graph, [port.name for port in graph.output])
    keep_nodes(graph, set(live))
    kept = [port for port in graph.input if port.name != mask]
    del graph.input[:]
    graph.input.extend(kept)
    graph.input.append(helper.make_tensor_value_info(lengths, TensorProto.INT32, ["batch_size"]))
    graph.input.append(helper.make_tensor_value_info(total, TensorProto.INT32, []))
    return True


def _derives_lengths(model: ModelProto, mask: str, pair: tuple[str, ...]) -> bool:
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    graph = model.graph
    indices, tensors = ancestors(graph, pair)
    ports = {port.name for port in graph.input}
    weights = [tensor for tensor in graph.initializer if tensor.name in tensors]
    fed = tensors & (ports - {tensor.name for tensor in weights})
    if fed != {mask} or any(weight.external_data for weight in weights):
        return False
    port = next(port for port in graph.input if port.name == mask)
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in pair]
    nodes = [graph.node[i] for i in indices]
    if any(node.domain not in ("", "ai.onnx") for node in nodes):
        return False
    part = helper.make_model(
        helper.make_graph(nodes, "lengths", [port], outputs, weights),
        opset_imports=list(model.opset_import),
        ir_version=model.ir_version,
    )
    dtype = helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
    try:
        evaluator = ReferenceEvaluator(part)
        for probe in _PROBES:
            array = np.array(probe, dtype)
            found, size = evaluator.run(None, {mask: array})
            wanted = array.sum(axis=1) - 1
            if found.shape != wanted.shape or not np.array_equal(found, wanted):
                return False
            if np.size(size) != 1 or int(np.reshape(size, -1)[0]) != array.shape[1]:
                return False
    except Exception:
        # The evaluator raises whatever an operator raises; any of it means "not recognised".
        return False
    return True


def _mask_is_needed(
    graph: GraphProto, mask: str, pair: tuple[str, ...], attention: list[NodeProto]
) -> bool:
    """Whether an output still depends on the mask once the attention takes other lengths."""
    inside = {id(node) for node in attention}
    made_by: dict[str, NodeProto] = {
        name: node for node in graph.node for name in node.output if name
    }
    waiting, seen = [port.name for port in graph.output], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        if name == mask:
            return True
        seen.add(name)
        if (node := made_by.get(name)) is not None:
            names = list(inputs_of(node))
            if id(node) in inside:
                names = [
                    tensor
                    for i, tensor in enumerate(node.input)
                    if tensor and i not in (_LENGTHS, _TOTAL)
                ]
            waiting.extend(names)
    return False
