"""Packages whose graph or weights are at fault."""

from __future__ import annotations

from onnx import NodeProto, TensorProto, ValueInfoProto

from support.breaking import (
    Broken,
    add_node,
    copy,
    cut,
    drop_ports,
    external,
    graph,
    link_to_itself,
    move_out,
    node,
    port,
    remove,
    rename,
    resize,
    retype,
    several,
    weight,
    write,
)

GENAI = "llama/genai-fp32"
OPTIMUM = "llama/optimum"
STANDARD = "llama/mobius-standard"
STATIC = "llama/mobius-static"
BARE = "qwen2/bare"


def _sizes(*sizes):
    def change(tensor: TensorProto) -> None:
        tensor.dims[:] = sizes

    return change


def _declared_only(tensor: TensorProto) -> None:
    tensor.dims[:] = [1 << 20, 2560]
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT


def _huge_beside(tensor: TensorProto) -> None:
    tensor.dims[:] = [1 << 20, 2560]
    for entry in tensor.external_data:
        if entry.key == "length":
            entry.value = str((1 << 20) * 2560 * 4)


def _attribute(name, value):
    def change(one: NodeProto) -> None:
        next(attribute for attribute in one.attribute if attribute.name == name).i = value

    return change


def _reads_itself(one: NodeProto) -> None:
    one.input[0] = one.output[0]


def _two_of_ids(model) -> None:
    again = ValueInfoProto()
    again.CopyFrom(port(model, "input_ids"))
    again.name = "other_ids"
    model.graph.input.append(again)
    gather = next(
        one for one in model.graph.node if one.op_type == "Gather" and "input_ids" in one.input
    )
    twin = NodeProto()
    twin.CopyFrom(gather)
    twin.name, twin.output[:] = "twin", ["twin_embedding"]
    twin.input[:] = ["other_ids" if one == "input_ids" else one for one in gather.input]
    model.graph.node.append(twin)
    port(model, "input_ids").name = "some_ids"
    gather.input[:] = ["some_ids" if one == "input_ids" else one for one in gather.input]
    for one in model.graph.node:
        one.input[:] = ["some_ids" if name == "input_ids" else name for name in one.input]


def _is_int(model) -> None:
    port(model, "logits").type.tensor_type.elem_type = TensorProto.INT64


GRAPHS = [
    Broken(
        "graph is missing",
        GENAI,
        remove("model.onnx"),
        "cannot read model.onnx: No such file or directory",
    ),
    Broken("graph is empty", OPTIMUM, write("model.onnx", b""), "model.onnx is empty"),
    Broken(
        "graph is cut off",
        OPTIMUM,
        cut("model.onnx", 0.5),
        "model.onnx is damaged at byte 19: field 7 says 242630 bytes and 121305 are left",
    ),
    Broken(
        "graph is a text",
        BARE,
        write("model.onnx", "version https://git-lfs\n"),
        "model.onnx is damaged at byte 0: field 14 has the unknown wire type 6",
    ),
    Broken(
        "graph is another protobuf message",
        BARE,
        write("model.onnx", b"\x08\x0a"),
        "model.onnx is damaged at byte 2: it holds no graph",
    ),
    Broken(
        "graph links to itself",
        STANDARD,
        link_to_itself("model.onnx"),
        "inference_metadata.yaml: graph: 'model.onnx': Symlink loop from 'model.onnx'",
    ),
    Broken(
        "graph links out, HF",
        OPTIMUM,
        move_out("model.onnx"),
        "model.onnx is a link out of",
    ),
    Broken(
        "graph links out, metadata",
        STANDARD,
        move_out("model.onnx"),
        "inference_metadata.yaml: graph: 'model.onnx' is a link out of the package",
    ),
    Broken(
        "weights are missing",
        GENAI,
        remove("model.onnx.data"),
        "the weights 'model.embed_tokens.weight' of model.onnx",
    ),
    Broken(
        "weights are cut off",
        STANDARD,
        cut("model.onnx.data", 0.9),
        "the weights 'lm_head.weight_t' of model.onnx",
    ),
    Broken(
        "weights lie above",
        GENAI,
        external("location", "../model.onnx.data"),
        "the weights 'model.embed_tokens.weight' of model.onnx: '../model.onnx.data' leads out of ",
    ),
    Broken(
        "weights have an absolute path",
        STANDARD,
        external("location", "/etc/passwd"),
        "the weights 'model.embed_tokens.weight' of model.onnx: '/etc/passwd' leads out of ",
    ),
    Broken(
        "weights link out",
        STATIC,
        move_out("model.onnx.data"),
        "the weights 'model.embed_tokens.weight' of model.onnx",
    ),
    Broken(
        "weights at an address in memory",
        STATIC,
        external("location", "*/_ORT_MEM_ADDR_/x"),
        "the weights 'model.embed_tokens.weight' of model.onnx",
    ),
    Broken(
        "offset beyond the file",
        GENAI,
        external("offset", str(1 << 40)),
        "the weights 'model.embed_tokens.weight' of model.onnx",
    ),
    Broken(
        "length is not that of the shape",
        GENAI,
        external("length", str(10 << 30)),
        "the weights 'model.embed_tokens.weight' of model.onnx",
    ),
    Broken(
        "10 GB beside the graph",
        GENAI,
        weight(_huge_beside),
        "the weights 'model.embed_tokens.weight' of model.onnx",
    ),
    Broken(
        "10 GB without data", OPTIMUM, weight(_declared_only), "model.onnx is damaged at byte 92892"
    ),
    Broken(
        "weight has fewer bytes than its shape",
        OPTIMUM,
        weight(_sizes(1 << 16, 64)),
        "model.onnx is damaged at byte 92933: the tensor 'model.embed_tokens.weight' has 36864",
    ),
    Broken(
        "negative size",
        OPTIMUM,
        weight(_sizes(-1, 32)),
        "model.onnx is damaged at byte 92905: a dimension is -1",
    ),
    Broken(
        "unknown element type",
        OPTIMUM,
        weight(lambda one: setattr(one, "data_type", 99)),
        "model.onnx is damaged at byte 92901: there is no element type 99",
    ),
    Broken(
        "node reads itself, bare",
        BARE,
        node("MatMul", _reads_itself),
        "the node MatMul 'model/layers.0/self_attn/q_proj/MatMul_node_13' of model.onnx",
        False,
    ),
    Broken(
        "attention reads itself",
        GENAI,
        node("GroupQueryAttention", _reads_itself),
        "the node com.microsoft.GroupQueryAttention '/model/layers.0/attn/GroupQueryAttention'",
        False,
    ),
    Broken(
        "logits are their own source",
        BARE,
        several(
            graph(
                lambda model: [
                    one.output.__setitem__(0, "x")
                    for one in model.graph.node
                    if "logits" in one.output
                ]
            ),
            add_node("Identity", ["logits"], ["logits"]),
        ),
        "the node Identity that makes 'logits' of model.onnx: it reads its own output 'logits'",
        False,
    ),
    Broken(
        "two casts read each other",
        BARE,
        several(
            add_node("Cast", ["loop_b"], ["loop_a"], to=7),
            add_node("Cast", ["loop_a"], ["loop_b"], to=7),
            node("Gather", lambda one: one.input.__setitem__(1, "loop_a")),
        ),
        "the node Cast that makes 'loop_a' of model.onnx",
        False,
    ),
    Broken(
        "node reads nothing",
        BARE,
        node("MatMul", lambda one: one.input.__setitem__(0, "nowhere")),
        "the node MatMul 'model/layers.0/self_attn/q_proj/MatMul_node_13' of model.onnx",
        False,
    ),
    Broken(
        "unknown operator",
        BARE,
        node("RMSNormalization", lambda one: setattr(one, "op_type", "Norm9")),
        "ONNX Runtime cannot load model.onnx: [ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an",
        True,
    ),
    Broken(
        "operators from the future",
        BARE,
        graph(lambda model: setattr(model.opset_import[0], "version", 999)),
        "ONNX Runtime cannot load model.onnx: [ONNXRuntimeError] : 1 : FAIL :",
        True,
    ),
    Broken(
        "no logits",
        OPTIMUM,
        drop_ports("logits"),
        "model.onnx has no port for logits: it has none beside state",
    ),
    Broken(
        "no state",
        OPTIMUM,
        drop_ports("past", "present"),
        "the node Shape '/model/Shape' of model.onnx",
        False,
    ),
    Broken(
        "no present state",
        BARE,
        drop_ports("present"),
        "the input 'past_key_values.0.key' of model.onnx has no role",
    ),
    Broken(
        "token ids are no port",
        BARE,
        drop_ports("input_ids"),
        "the node Gather 'model/embed_tokens/Gather_node_0' of model.onnx",
    ),
    Broken(
        "one present missing",
        BARE,
        drop_ports("present.1.value"),
        "the state of model.onnx does not pair up",
    ),
    Broken(
        "logits are whole numbers",
        BARE,
        graph(_is_int),
        "model.onnx has no port for logits: it has 'logits' beside state",
    ),
    Broken(
        "two inputs index the embedding",
        OPTIMUM,
        graph(_two_of_ids),
        "several inputs of model.onnx can be input_ids",
    ),
    Broken(
        "past and present have two types",
        OPTIMUM,
        retype("present.0.key", TensorProto.FLOAT16),
        "the ports 'past_key_values.0.key' and 'present.0.key' of model.onnx",
    ),
    Broken(
        "keys with other heads than values",
        OPTIMUM,
        resize("past_key_values.0.key", 1, 4),
        "the ports 'past_key_values.0.key' and 'past_key_values.0.value' of model.onnx",
    ),
    Broken(
        "graph has other heads than the document",
        GENAI,
        several(
            *(
                resize(f"{k}.{n}.{h}", 1, 4)
                for k in ("past_key_values", "present")
                for n in (0, 1)
                for h in ("key", "value")
            )
        ),
        "the port 'past_key_values.0.key' of model.onnx has 4 heads: its operator '/model/",
    ),
    Broken(
        "operator has other heads than its ports",
        GENAI,
        node("GroupQueryAttention", _attribute("kv_num_heads", 1)),
        "the port 'past_key_values.0.key' of model.onnx has 2 heads",
    ),
    Broken(
        "query heads do not divide",
        GENAI,
        node("GroupQueryAttention", _attribute("num_heads", 3)),
        "ONNX Runtime cannot load model.onnx: [ONNXRuntimeError] : 1 : FAIL : Node",
        True,
    ),
    Broken(
        "ports with another head size",
        BARE,
        several(
            *(
                resize(f"{k}.{n}.{h}", 3, 8)
                for k in ("past_key_values", "present")
                for n in (0, 1)
                for h in ("key", "value")
            )
        ),
        "model.onnx does not run: a few tokens without a past fail",
        True,
    ),
    Broken(
        "a batch of one",
        BARE,
        resize("input_ids", 0, 1),
        "the port 'input_ids' of model.onnx is input_ids: the graph takes exactly 1 rows at a time",
    ),
    Broken(
        "token ids are floats",
        BARE,
        retype("input_ids", TensorProto.FLOAT),
        "the input 'input_ids' of model.onnx has no role",
    ),
    Broken(
        "layers of two capacities",
        STATIC,
        several(resize("key_cache.1", 1, 64), resize("updated_key_cache.1", 1, 64)),
        "inference_metadata.yaml: model.io.inputs[4].shape[1]",
    ),
    Broken(
        "static cache of another width",
        STATIC,
        several(
            *(
                resize(f"{k}{h}_cache.{n}", 2, 33)
                for k in ("", "updated_")
                for n in (0, 1)
                for h in ("key", "value")
            )
        ),
        "inference_metadata.yaml: model.io.inputs[2].shape[2]",
    ),
    Broken(
        "present renamed in graph, genai",
        GENAI,
        rename("present.1.value", "present.1.v"),
        "genai_config.json: model.decoder.outputs.present_value_names",
    ),
    Broken(
        "past renamed in graph, metadata",
        STANDARD,
        rename("past_key_values.0.key", "pkv0"),
        "inference_metadata.yaml: model.io.inputs[3].name",
    ),
    Broken(
        "logits renamed in graph",
        STANDARD,
        rename("logits", "scores"),
        "inference_metadata.yaml: model.io.outputs[0].name",
    ),
    Broken(
        "mask renamed in graph, genai",
        GENAI,
        rename("attention_mask", "mask"),
        "genai_config.json model.decoder.inputs.attention_mask names 'attention_mask': model.onnx",
    ),
    Broken(
        "write indices renamed in graph",
        STATIC,
        rename("write_indices", "cursor"),
        "inference_metadata.yaml: model.io.inputs[6].name",
    ),
    Broken(
        "names contradict the order of layers",
        OPTIMUM,
        several(
            rename("present.0.key", "tmp"),
            rename("present.1.key", "present.0.key"),
            rename("tmp", "present.1.key"),
        ),
        "the ports 'present.1.key' and 'present.0.key' of model.onnx",
    ),
    Broken(
        "an input more",
        OPTIMUM,
        graph(
            lambda model: model.graph.input.append(
                ValueInfoProto(name="noise", type=port(model, "input_ids").type)
            )
        ),
        "the input 'noise' of model.onnx has no role",
    ),
    Broken(
        "two graphs, bare",
        BARE,
        copy("model.onnx", "other.onnx"),
        "holds 2 graphs: model.onnx, other.onn",
    ),
    Broken(
        "two graphs, metadata",
        STANDARD,
        several(
            copy("model.onnx", "other.onnx"),
            copy("model.onnx", "another.onnx"),
            remove("model.onnx"),
        ),
        "model.onnx is not there: inference_metadata.yaml names no graph, and there is",
    ),
    Broken(
        "an encoder beside",
        OPTIMUM,
        copy("model.onnx", "encoder_model.onnx"),
        "encoder_model.onnx is there: the model is an encoder and a decoder",
    ),
    Broken(
        "cache switch is a number",
        "llama/optimum-merged",
        graph(
            lambda m: setattr(port(m, "use_cache_branch").type.tensor_type, "elem_type", 1),
            "decoder_model_merged.onnx",
        ),
        "the port 'use_cache_branch' of decoder_model_merged.onnx is use_cache_branch",
    ),
]
