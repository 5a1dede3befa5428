import json

import onnx
import pytest
from onnx import TensorProto

from support.tiny_genai import genai_config, write_genai
from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.load import load_package
from tokenmill.package.model_package import Role, StateLayout


@pytest.fixture
def edited(tmp_path):
    """Changes the tiny decoder's graph, and its configuration, and loads the package."""

    def edited(change, **decoder):
        write_genai(tmp_path)
        model = onnx.load(tmp_path / "model.onnx")
        change(model.graph)
        onnx.save(model, tmp_path / "model.onnx")
        document = genai_config()
        document["model"]["decoder"].update(decoder)
        (tmp_path / "genai_config.json").write_text(json.dumps(document))
        return load_package(tmp_path)

    return edited


def attention(graph):
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


def state_ports(graph, start=""):
    ports = [*graph.input, *graph.output]
    return [p for p in ports if p.name.startswith(start or ("past", "present"))]


def set_axis(graph, axis, size, start=""):
    for port in state_ports(graph, start):
        dim = port.type.tensor_type.shape.dim[axis]
        if isinstance(size, int):
            dim.dim_value = size
        else:
            dim.dim_param = size


def set_dtype(graph, dtype, start=""):
    for port in state_ports(graph, start):
        port.type.tensor_type.elem_type = dtype


def set_attribute(graph, name, value):
    for node in attention(graph):
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def test_a_symbolic_dimension_takes_the_declared_size(edited):
    package = edited(lambda graph: set_axis(graph, 3, "kv_cache_dim"))
    assert {layer.head_dim for layer in package.state.attention} == {16}


def test_a_size_that_no_port_tells_is_that_of_the_keys(edited):
    package = edited(lambda graph: set_axis(graph, 3, "kv_cache_dim"), head_size=None)
    assert {layer.head_dim for layer in package.state.attention} == {16}


def test_a_declared_size_that_the_keys_contradict_is_refused(edited):
    with pytest.raises(InvalidPackage, match=r"head_size says that head_dim is 8: .* has 16"):
        edited(lambda graph: set_axis(graph, 3, "kv_cache_dim"), head_size=8)


def test_ports_that_contradict_the_keys_are_refused(edited):
    with pytest.raises(InvalidPackage, match=r"has 8 numbers a head: its operator .* keys of 16"):
        edited(lambda graph: set_axis(graph, 3, 8))


def test_a_size_that_one_port_tells_serves_its_layer(edited):
    def change(graph):
        set_axis(graph, 1, "heads")
        set_axis(graph, 1, 2, "present")

    package = edited(change, num_key_value_heads=None)
    assert {layer.num_kv_heads for layer in package.state.attention} == {2}


def test_ports_of_a_layer_that_differ_are_refused_by_name(edited):
    with pytest.raises(InvalidPackage, match=r"'past_key_values\.0\.key' and 'present\.0\.value'"):
        edited(lambda graph: set_axis(graph, 3, 8, "present.0.value"))


def test_an_operator_that_contradicts_its_port_is_refused(edited):
    with pytest.raises(InvalidPackage, match=r"has 2 heads: its operator .* has 4"):
        edited(lambda graph: set_attribute(graph, "kv_num_heads", 4))


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [(TensorProto.FLOAT16, "float16", 2), (TensorProto.INT8, "int8", 1)],
)
def test_the_type_of_the_state_is_the_ports(edited, dtype, name, size):
    state = edited(lambda graph: set_dtype(graph, dtype)).state
    assert {layer.dtype for layer in state.attention} == {name}
    assert state.bytes_per_token == 2 * 2 * 2 * 16 * size


@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.UINT4, TensorProto.INT64])
def test_state_of_another_type_is_refused_by_name(edited, dtype):
    with pytest.raises(
        UnsupportedModel, match=r"'past_key_values\.0\.key' .* is \w+: state can be"
    ):
        edited(lambda graph: set_dtype(graph, dtype))


def test_four_bit_state_is_refused(edited):
    def change(graph):
        set_dtype(graph, TensorProto.UINT8)
        set_attribute(graph, "kv_cache_bit_width", 4)

    with pytest.raises(UnsupportedModel, match="uint8, 4 bits a number"):
        edited(change)


def test_past_and_present_of_different_types_are_refused(edited):
    with pytest.raises(InvalidPackage, match=r"float32 \[.*\] and float16 \["):
        edited(lambda graph: set_dtype(graph, TensorProto.FLOAT16, "present"))


def test_state_that_is_not_written_in_place_is_plain(edited):
    def change(graph):
        attention(graph)[1].domain = "other"

    assert edited(change).state.layout is StateLayout.PLAIN


def test_state_in_place_needs_no_word_of_the_configuration(tmp_path):
    config = genai_config()
    del config["search"]["past_present_share_buffer"]
    package = load_package(write_genai(tmp_path, config=config))
    assert package.state.layout is StateLayout.SHARED_BUFFER


def test_the_graphs_own_window_is_the_layers(edited):
    window = {"window_size": 32, "slide_key_value_cache": False, "slide_inputs": False}
    package = edited(
        lambda graph: set_attribute(graph, "local_window_size", 32),
        sliding_window=window | {"layers": [0, 1], "cache_slack": 8},
    )
    assert {layer.sliding_window for layer in package.state.attention} == {32}
    assert [item.field for item in package.ignored] == [
        "genai_config.json model.decoder.sliding_window.cache_slack"
    ]


def test_names_that_nobody_declares_are_found_in_the_graph(edited):
    def rename(graph):
        for thing in (*graph.input, *graph.output):
            thing.name = thing.name.replace("past_key_values", "before").replace("present", "after")
        for node in graph.node:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    names[i] = name.replace("past_key_values", "before").replace("present", "after")

    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    package = edited(rename, inputs=inputs, outputs={"logits": "logits"})
    assert package.state.layout is StateLayout.SHARED_BUFFER
    assert package.decoder.port(Role.PAST_KEY, 1).name == "before.1.key"


def test_another_number_of_layers_than_the_graph_keeps_is_refused(edited):
    def rename(graph):
        for thing in (*graph.input, *graph.node, *graph.output):
            for names in [thing.input, thing.output] if hasattr(thing, "op_type") else []:
                for i, name in enumerate(names):
                    names[i] = name.replace("past_key_values", "before")
            thing.name = thing.name.replace("past_key_values", "before")

    declared = {"inputs": {}, "outputs": {"logits": "logits"}, "num_hidden_layers": 1}
    with pytest.raises(InvalidPackage, match=r"num_hidden_layers: it is 1, and .* of 2 layers"):
        edited(rename, **declared)


def test_a_window_that_the_graph_does_not_have_is_refused(edited):
    window = {"window_size": 16, "slide_key_value_cache": False, "slide_inputs": False}
    with pytest.raises(UnsupportedModel, match=r"window_size is 16 for layer 0: .* there has 32"):
        edited(lambda graph: set_attribute(graph, "local_window_size", 32), sliding_window=window)


def test_an_output_without_a_role_is_listed(edited):
    def probed(graph):
        extra = onnx.helper.make_tensor_value_info("probe", TensorProto.FLOAT, [1])
        graph.output.append(extra)
        graph.node.append(onnx.helper.make_node("Identity", ["logits"], ["probe"]))

    package = edited(probed)
    assert [(item.field, item.value) for item in package.ignored] == [
        ("model.onnx output", "probe")
    ]


def test_an_input_without_a_role_is_refused(edited):
    extra = onnx.helper.make_tensor_value_info("probe", TensorProto.FLOAT, [1])
    with pytest.raises(InvalidPackage, match=r"the input 'probe' of model\.onnx has no role"):
        edited(lambda graph: graph.input.append(extra))


def test_logits_that_are_no_floats_are_refused(edited):
    def change(graph):
        graph.output[-1].type.tensor_type.elem_type = TensorProto.INT64

    with pytest.raises(InvalidPackage, match=r"logits.* cannot be of type int64"):
        edited(change)
