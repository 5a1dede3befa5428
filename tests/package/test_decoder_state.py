from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper

from support.tiny_onnx import TinySpec, make_decoder
from support.tiny_plain import STATIC, PlainSpec, make_plain
from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.decoder_state import Geometry, read_layout
from tokenmill.package.model_package import StateLayout
from tokenmill.package.onnx_file import read_onnx
from tokenmill.package.roles import resolve_ports

SILENT = Geometry()
DOC = ("doc heads", "doc dim")


@pytest.fixture
def state(tmp_path):
    """Writes a graph, changes it, and reads its state."""

    def state(spec, declared=SILENT, change=None):
        model = make_decoder(spec) if isinstance(spec, TinySpec) else make_plain(spec)
        if change is not None:
            change(model.graph)
        onnx.save(model, tmp_path / "model.onnx")
        graph = read_onnx(tmp_path / "model.onnx")
        ports = resolve_ports(graph, (), settle="config.json")
        return read_layout(graph, ports, declared=declared, settle="config.json head_dim")

    return state


def sizes(contract):
    return [(one.layer, one.num_kv_heads, one.head_dim, one.dtype) for one in contract.attention]


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (PlainSpec(), StateLayout.PLAIN),
        (PlainSpec(merged=True), StateLayout.PLAIN),
        (PlainSpec(attention="operator", positions="table"), StateLayout.PLAIN),
        (STATIC, StateLayout.STATIC_CACHE),
        (TinySpec(hidden=32, head_dim=8, vocab=64), StateLayout.SHARED_BUFFER),
    ],
)
def test_the_operators_that_read_the_past_tell_the_layout(state, spec, layout):
    contract = state(spec)
    assert contract.layout is layout
    assert sizes(contract) == [(0, 2, 8, "float32"), (1, 2, 8, "float32")]
    assert contract.capacity == (32 if layout is StateLayout.STATIC_CACHE else None)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_state_has_the_type_of_its_ports(state, dtype):
    assert sizes(state(PlainSpec(dtype=dtype)))[0] == (0, 2, 8, dtype)


def test_layers_may_differ(state):
    contract = state(PlainSpec(kv_heads=(4, 1)))
    assert [one.num_kv_heads for one in contract.attention] == [4, 1]
    assert contract.bytes_per_token == 2 * 4 * 8 * (4 + 1)


def test_a_window_is_what_the_operator_says(state):
    contract = state(TinySpec(window=5))
    assert [one.sliding_window for one in contract.attention] == [5, 5]


def test_sizes_that_the_graph_leaves_open_are_the_declared_ones(state):
    spec = PlainSpec(symbolic_heads=True)
    assert sizes(state(spec, Geometry(2, 8, DOC)))[1] == (1, 2, 8, "float32")
    assert sizes(state(spec, Geometry(2, 8, firm=False)))[1] == (1, 2, 8, "float32")


def test_an_operator_tells_the_heads_that_a_port_does_not(state):
    spec = PlainSpec(attention="operator", positions="table", symbolic_heads=True)
    assert sizes(state(spec, Geometry(head_dim=8)))[0] == (0, 2, 8, "float32")


def test_sizes_that_nobody_tells_are_an_error_that_names_port_and_field(state):
    with pytest.raises(InvalidPackage) as caught:
        state(PlainSpec(symbolic_heads=True), Geometry(head_dim=8))
    assert str(caught.value) == (
        "nothing tells num_kv_heads of the port 'past_key_values.0.key' of model.onnx: its shape "
        "is [batch_size, kv_heads, past_length, head_dim], and no document says it. "
        "Say it in config.json head_dim, or export with fixed sizes"
    )


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            Geometry(3, 8, DOC),
            "doc heads says that num_kv_heads is 3: the state of ",
        ),
        (Geometry(2, 16, DOC), "doc dim says that head_dim is 16"),
    ],
)
def test_declared_sizes_that_no_layer_has_are_refused(state, declared, message):
    with pytest.raises(InvalidPackage, match=message):
        state(PlainSpec(), declared)


def test_a_guess_gives_way_to_the_graph(state):
    assert sizes(state(PlainSpec(), Geometry(4, 16, firm=False)))[0] == (0, 2, 8, "float32")


def test_a_declared_size_of_some_layers_holds(state):
    assert state(PlainSpec(kv_heads=(4, 1)), Geometry(1, 8, DOC)).attention[0].num_kv_heads == 4


def ports(graph, start):
    return [port for port in (*graph.input, *graph.output) if port.name.startswith(start)]


def test_keys_and_values_of_different_sizes_are_refused(state):
    def widen(graph):
        for start in ("past_key_values.0.value", "present.0.value"):
            for port in ports(graph, start):
                port.type.tensor_type.shape.dim[3].dim_value = 16

    with pytest.raises(UnsupportedModel, match="one has 8 numbers a head, the other 16"):
        state(PlainSpec(), change=widen)


def test_a_past_of_another_type_than_its_present_is_refused(state):
    def retype(graph):
        (port,) = ports(graph, "present.1.value")
        port.type.tensor_type.elem_type = TensorProto.FLOAT16

    with pytest.raises(InvalidPackage, match=r"'past_key_values.1.key' and 'present.1.value'"):
        state(PlainSpec(), change=retype)


def test_state_with_the_tokens_on_another_axis_is_refused(state):
    def turn(graph):
        for node in graph.node:
            if node.op_type == "Concat" and node.input[0].startswith("past"):
                node.attribute[0].i = 1

    with pytest.raises(UnsupportedModel, match="along axis 1: state is read as"):
        state(PlainSpec(), change=turn)


def test_state_of_three_axes_that_is_appended_to_is_refused(state):
    def flatten(graph):
        for start in ("past", "present"):
            for port in ports(graph, start):
                del port.type.tensor_type.shape.dim[3:]

    with pytest.raises(UnsupportedModel, match=r"not \[batch, heads, tokens, dimension\]"):
        state(PlainSpec(), change=flatten)


def test_an_operator_of_other_heads_than_its_port_is_refused(state):
    def change(graph):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name == "kv_num_heads":
                    attribute.i = 1

    with pytest.raises(InvalidPackage, match=r"has 2 heads: its operator 'node_.*' has 1"):
        state(PlainSpec(attention="operator", positions="table"), change=change)


def test_heads_that_do_not_divide_a_static_cache_are_refused(state):
    def change(graph):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name == "kv_num_heads":
                    attribute.i = 3

    with pytest.raises(InvalidPackage, match="16 numbers a token: its attention has 3 heads"):
        state(STATIC, change=change)


def test_static_caches_of_different_capacities_are_refused(state):
    def change(graph):
        for port in (*ports(graph, "key_cache.1"), *ports(graph, "value_cache.1")):
            port.type.tensor_type.shape.dim[1].dim_value = 16
        for port in ports(graph, "updated"):
            if port.name.endswith("1"):
                port.type.tensor_type.shape.dim[1].dim_value = 16

    with pytest.raises(InvalidPackage, match="different capacities: 16, 32"):
        state(STATIC, change=change)


def test_a_static_cache_of_four_axes_tells_its_sizes_itself(state):
    """[batch, heads, capacity, dim], as TensorScatter's default axis has it."""

    def change(graph):
        for port in (*ports(graph, "key_cache"), *ports(graph, "value_cache")):
            reshape(port)
        for port in ports(graph, "updated"):
            reshape(port)

    def reshape(port):
        dims = port.type.tensor_type.shape
        del dims.dim[:]
        for size in ("batch_size", 2, 32, 8):
            dim = dims.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            else:
                dim.dim_param = size

    contract = state(STATIC, change=change)
    assert (contract.layout, contract.capacity) == (StateLayout.STATIC_CACHE, 32)
    assert sizes(contract)[1] == (1, 2, 8, "float32")


def test_a_capacity_that_the_graph_leaves_open_is_none(state):
    def change(graph):
        for start in ("key_cache", "value_cache", "updated"):
            for port in ports(graph, start):
                port.type.tensor_type.shape.dim[1].dim_param = "capacity"

    assert state(STATIC, change=change).capacity is None


def test_an_operator_in_a_branch_or_behind_a_cast_does_not_write_in_place(state):
    def cast(graph):
        for node in graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[3] = f"{node.input[3]}.cast"
        for layer in range(2):
            name = f"past_key_values.{layer}.key"
            made = helper.make_node("Cast", [name], [f"{name}.cast"], to=TensorProto.FLOAT)
            graph.node.insert(0, made)

    assert state(TinySpec(), change=cast).layout is StateLayout.PLAIN


def test_layers_that_are_written_in_place_go_with_those_that_are_handed_over(state):
    def mix(graph):
        for node in graph.node:
            if node.op_type == "GroupQueryAttention" and "past_key_values.1.key" in node.input:
                node.input[3] = "cast"
        name = "past_key_values.1.key"
        graph.node.insert(0, helper.make_node("Cast", [name], ["cast"], to=TensorProto.FLOAT))

    assert state(TinySpec(), change=mix).layout is StateLayout.PLAIN


def test_layers_that_keep_their_state_differently_are_refused(state):
    def mix(graph):
        for node in graph.node:
            if node.op_type == "TensorScatter" and node.input[0].endswith("_cache.1"):
                node.op_type = "Concat"
                del node.input[2:], node.attribute[:]
                node.attribute.append(helper.make_attribute("axis", 2))
        for port in (*graph.input, *graph.output):
            if port.name.endswith("_cache.1"):
                shape = ["batch", 2, "tokens", 8]
                port.CopyFrom(helper.make_tensor_value_info(port.name, TensorProto.FLOAT, shape))

    with pytest.raises(UnsupportedModel, match="plain, static_cache"):
        state(STATIC, change=mix)


def test_one_layer_is_enough(state):
    assert sizes(state(replace(PlainSpec(), layers=1))) == [(0, 2, 8, "float32")]
