from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper

from support.tiny_plain import (
    NAMES,
    STATIC,
    PlainSpec,
    PortNames,
    make_plain,
    renamed,
)
from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.model_package import Role
from tokenmill.package.onnx_file import read_onnx
from tokenmill.package.roles import Declaration, resolve_ports

KV = ("key", "value")
NO_MASK = PortNames(attention_mask=None, position_ids=None)
SPECS = {
    "rotary": PlainSpec(),
    "table": PlainSpec(positions="table"),
    "learned": PlainSpec(positions="learned", bias=True, qk_norm=True),
    "none": PlainSpec(positions="none"),
    "merged": PlainSpec(merged=True),
    "no positions": PlainSpec(names=PortNames(position_ids=None)),
    "no mask": PlainSpec(names=NO_MASK),
    "operator": PlainSpec(attention="operator", positions="table"),
    "static": STATIC,
    "int32 and fp16": PlainSpec(dtype="float16", ids_dtype="int32"),
    "bf16": PlainSpec(dtype="bfloat16"),
    "grouped by layer": PlainSpec(kv_heads=(4, 1)),
    "alone": PlainSpec(kv_heads=4),
    "capped and windowed": PlainSpec(soft_cap=5.0, window=3),
    "many layers": PlainSpec(layers=12),
}


@pytest.fixture
def resolve(tmp_path):
    """Writes a graph, changes it, and resolves its ports."""

    def resolve(spec, declared=(), change=None):
        model = make_plain(spec)
        if change is not None:
            change(model.graph)
        onnx.save(model, tmp_path / "model.onnx")
        return resolve_ports(read_onnx(tmp_path / "model.onnx"), declared, settle="config.json io")

    return resolve


def expected(spec):
    names = spec.names
    out = {("input_ids", None): names.input_ids, ("logits", None): names.logits}
    if names.attention_mask is not None:
        out["attention_mask", None] = names.attention_mask
    if names.position_ids is not None and spec.positions != "none":
        out["position_ids", None] = names.position_ids
    if spec.merged:
        out["use_cache_branch", None] = names.use_cache_branch
    if spec.attention == "static":
        out["write_indices", None] = names.write_indices
        out["kv_lengths", None] = names.kv_lengths
    for layer in range(spec.layers):
        for role in ("past_key", "past_value", "present_key", "present_value"):
            out[role, layer] = getattr(names, role).format(layer)
    return out


def roles(ports):
    return {(one.role.value, one.layer): one.port.name for one in ports.bindings}


@pytest.mark.parametrize("name", SPECS)
def test_every_port_has_its_role(resolve, name):
    ports = resolve(SPECS[name])
    assert roles(ports) == expected(SPECS[name])
    assert ports.ignored == ()


@pytest.mark.parametrize("name", SPECS)
def test_names_that_say_nothing_change_no_role(resolve, name):
    spec = renamed(SPECS[name])
    ports = resolve(spec)
    assert roles(ports) == expected(spec)
    assert [[port.name for port in layer] for layer in ports.state] == [
        [f"{letter}{layer}" for letter in "defg"] for layer in range(spec.layers)
    ]


def test_names_that_lie_do_not_change_the_roles_of_one_layer(resolve):
    """Key and value, and mask and positions, are called each other's name."""
    names = PortNames(
        attention_mask="position_ids",
        position_ids="attention_mask",
        past_key="past.{}.value",
        past_value="past.{}.key",
        present_key="new.{}.value",
        present_value="new.{}.key",
    )
    spec = PlainSpec(names=names)
    assert roles(resolve(spec)) == expected(spec)


def test_every_role_has_its_reason(resolve):
    why = {(one.role.value, one.layer): one.why for one in resolve(PlainSpec()).bindings}
    assert why["input_ids", None] == "structure: it indexes the embedding 'embedding', 64 x 32"
    assert why["position_ids", None] == "structure: it reaches Cos"
    mask = "structure: int64 [batch_size, total_length] that reaches Softmax"
    assert why["attention_mask", None] == mask
    assert why["logits", None] == "structure: the one floating output of 3 axes that is not state"
    assert why["past_key", 1].endswith("read as keys")
    assert why["present_value", 1].endswith("read as values")


def test_bindings_stand_in_a_stable_order(resolve):
    order = [(one.role.value, one.layer) for one in resolve(PlainSpec()).bindings]
    assert order == [
        ("input_ids", None),
        ("attention_mask", None),
        ("position_ids", None),
        ("past_key", 0),
        ("past_key", 1),
        ("past_value", 0),
        ("past_value", 1),
        ("logits", None),
        ("present_key", 0),
        ("present_key", 1),
        ("present_value", 0),
        ("present_value", 1),
    ]


def test_an_output_without_a_role_is_listed(resolve):
    def add(graph):
        graph.node.append(helper.make_node("Shape", ["input_ids"], ["sizes"]))
        graph.output.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [2]))

    ports = resolve(PlainSpec(), change=add)
    assert [(one.value, one.why) for one in ports.ignored] == [("sizes", "it has no role")]


def test_an_output_that_repeats_state_is_listed(resolve):
    def repeat(graph):
        graph.node.append(helper.make_node("Identity", ["present.0.key"], ["again"]))
        shape = ["batch_size", 2, "total_length", 8]
        graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, shape))

    ports = resolve(PlainSpec(), change=repeat)
    assert [(one.value, one.why) for one in ports.ignored] == [
        ("again", "it repeats 'present.0.key'")
    ]


def test_an_output_of_state_that_nobody_continues_is_listed(resolve):
    def orphan(graph):
        graph.node.append(helper.make_node("Neg", ["present.0.key"], ["present.2.key"]))
        shape = ["batch_size", 2, "total_length", 8]
        info = helper.make_tensor_value_info("present.2.key", TensorProto.FLOAT, shape)
        graph.output.append(info)

    ports = resolve(PlainSpec(), change=orphan)
    assert len(ports.state) == 2
    assert [one.value for one in ports.ignored] == ["present.2.key"]


def test_hidden_states_beside_the_logits_are_told_by_their_width(resolve):
    def hidden(graph):
        source = next(node for node in graph.node if node.output[0] == "logits")
        product = next(node for node in graph.node if node.output[0] == source.input[0])
        graph.node.append(helper.make_node("Identity", [product.input[0]], ["x"]))
        shape = ["batch_size", "sequence_length", 32]
        graph.output.insert(0, helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))

    ports = resolve(renamed(PlainSpec()), change=lambda graph: rename_logits(graph, hidden))
    assert ports.logits.name == "h"
    assert [one.value for one in ports.ignored] == ["x"]


def rename_logits(graph, change):
    """Applies a change that speaks of "logits" to a graph that calls them "h"."""
    for node in graph.node:
        node.output[:] = ["logits" if name == "h" else name for name in node.output]
    change(graph)
    for node in graph.node:
        node.output[:] = ["h" if name == "logits" else name for name in node.output]
        node.input[:] = ["h" if name == "logits" else name for name in node.input]


def two_logits(graph, *names):
    for name in names:
        node = helper.make_node("Neg", [graph.output[0].name], [name])
        graph.node.append(node)
        shape = ["batch_size", "sequence_length", 64]
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def test_of_two_outputs_of_one_width_the_conventional_name_decides(resolve):
    ports = resolve(PlainSpec(), change=lambda graph: two_logits(graph, "scores"))
    assert ports.logits.name == "logits"
    why = next(one.why for one in ports.bindings if one.role is Role.LOGITS)
    assert why == "the port's conventional name 'logits'"


def test_several_possible_logits_are_an_error_that_names_them(resolve):
    with pytest.raises(InvalidPackage) as caught:
        resolve(renamed(PlainSpec()), change=lambda graph: two_logits(graph, "scores"))
    assert str(caught.value) == (
        "several outputs of model.onnx can be logits: it could be 'h', 'scores'. "
        "Name it in config.json io"
    )


def test_a_declaration_settles_what_structure_leaves_open(resolve):
    said = Declaration(Role.LOGITS, "scores", None, "config.json io.logits")
    ports = resolve(renamed(PlainSpec()), [said], change=lambda graph: two_logits(graph, "scores"))
    assert ports.logits.name == "scores"


def second_tokens(graph, name):
    """Adds an input that indexes the embedding just as the tokens do."""
    info = helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", "n"])
    graph.input.append(info)
    graph.node.append(helper.make_node("Gather", ["embedding", name], [f"{name}_rows"]))


def test_several_possible_token_inputs_are_an_error_that_names_them(resolve):
    with pytest.raises(InvalidPackage) as caught:
        resolve(renamed(PlainSpec()), change=lambda graph: second_tokens(graph, "z"))
    assert str(caught.value) == (
        "several inputs of model.onnx can be input_ids: the graph's operators allow 'a', 'z'. "
        "Name the right one in config.json io"
    )


def test_an_input_that_nobody_declares_and_that_tells_nothing_is_an_error(resolve):
    def add(graph):
        info = helper.make_tensor_value_info("speed", TensorProto.FLOAT, ["batch_size"])
        graph.input.append(info)
        graph.node.append(helper.make_node("Neg", ["speed"], ["slow"]))

    with pytest.raises(InvalidPackage, match=r"the input 'speed' of model.onnx has no role") as at:
        resolve(PlainSpec(), change=add)
    assert "Name its role in config.json io" in str(at.value)


def test_an_input_that_nothing_reads_counts_by_its_conventional_name(resolve):
    def orphan(graph):
        info = helper.make_tensor_value_info(
            "position_ids", TensorProto.INT64, ["batch_size", "sequence_length"]
        )
        graph.input.append(info)

    ports = resolve(PlainSpec(names=PortNames(position_ids=None)), change=orphan)
    why = next(one.why for one in ports.bindings if one.role is Role.POSITION_IDS)
    assert why == "the port's conventional name 'position_ids'"


def test_token_types_are_not_taken_for_a_mask(resolve):
    def types(graph):
        info = helper.make_tensor_value_info("types", TensorProto.INT64, ["batch_size", "n"])
        graph.input.append(info)
        graph.initializer.append(
            helper.make_tensor("kinds", TensorProto.FLOAT, [2, 32], [0.0] * 64)
        )
        gather = next(node for node in graph.node if "embedding" in node.input)
        place, name = list(graph.node).index(gather) + 1, gather.output[0]
        gather.output[0] = "rows"
        graph.node.insert(place, helper.make_node("Add", ["rows", "typed"], [name]))
        graph.node.insert(place, helper.make_node("Gather", ["kinds", "types"], ["typed"]))

    with pytest.raises(InvalidPackage, match="the input 'types'"):
        resolve(PlainSpec(), change=types)
    with pytest.raises(InvalidPackage, match="the input 'types'"):
        resolve(PlainSpec(names=NO_MASK), change=types)


def test_a_graph_without_state_is_refused_with_what_to_do(resolve):
    with pytest.raises(UnsupportedModel) as caught:
        resolve(PlainSpec(past=False))
    assert "model.onnx keeps no state" in str(caught.value)
    assert "Export the model with past keys and values" in str(caught.value)


def test_a_decoder_of_embeddings_is_refused(resolve):
    def embeds(graph):
        gather = next(node for node in graph.node if "embedding" in node.input)
        gather.op_type, gather.input[:] = "Identity", ["x"]
        shape = ["batch_size", "sequence_length", 32]
        graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))

    with pytest.raises(UnsupportedModel, match=r"the input 'x' of model.onnx takes embeddings"):
        resolve(PlainSpec(), change=embeds)


@pytest.mark.parametrize(
    ("axis", "message"),
    [(0, "exactly 1 rows at a time"), (1, "exactly 1 tokens of a row at a time")],
)
def test_token_ids_of_a_fixed_size_are_refused(resolve, axis, message):
    def fix(graph):
        dim = graph.input[0].type.tensor_type.shape.dim[axis]
        dim.dim_value = 1

    with pytest.raises(UnsupportedModel, match=message):
        resolve(PlainSpec(), change=fix)


def test_numbers_against_the_order_of_execution_are_an_error(resolve):
    def swap(graph):
        swapped = {"past_key_values.0.key": "past_key_values.1.key"}
        swapped |= {new: old for old, new in swapped.items()}
        for node in graph.node:
            node.input[:] = [swapped.get(name, name) for name in node.input]

    with pytest.raises(InvalidPackage, match="contradict the order in which the layers run"):
        resolve(PlainSpec(), change=swap)


def test_a_past_that_another_layers_present_continues_is_an_error(resolve):
    def swap(graph):
        names = {"present.0.key": "present.1.key", "present.1.key": "present.0.key"}
        for node in graph.node:
            node.output[:] = [names.get(name, name) for name in node.output]

    with pytest.raises(InvalidPackage, match=r"'present.1.key' and 'present.0.key'"):
        resolve(PlainSpec(), change=swap)


def test_a_past_and_its_present_of_different_numbers_are_an_error(resolve):
    names = PortNames(present_key="present.5.key")
    with pytest.raises(InvalidPackage, match="one continues the other, and their numbers differ"):
        resolve(PlainSpec(layers=1, names=names))


def state_declared(**other):
    """Declares all state of two layers; `other` names templates by role."""
    return [
        Declaration(
            role, other.get(role.value, getattr(NAMES, role.value)).format(layer), layer, "doc kv"
        )
        for role in (Role.PAST_KEY, Role.PAST_VALUE, Role.PRESENT_KEY, Role.PRESENT_VALUE)
        for layer in range(2)
    ]


def test_declared_state_holds_and_keeps_its_reason(resolve):
    ports = resolve(PlainSpec(), state_declared())
    assert roles(ports) == expected(PlainSpec())
    assert {one.why for one in ports.bindings if one.layer is not None} == {"doc kv"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"past_key": "no.{}"}, "doc kv names 'no.0': model.onnx has no input called 'no.0'"),
        ({"present_value": "no.{}"}, "model.onnx has no output called 'no.0'"),
        (
            {"past_key": NAMES.past_value, "past_value": NAMES.past_key},
            "doc kv says that 'past_key_values.0.value' holds keys: model.onnx reads it as values",
        ),
        (
            {
                "past_key": NAMES.past_value,
                "past_value": NAMES.past_key,
                "present_key": NAMES.present_value,
                "present_value": NAMES.present_key,
            },
            "says that 'past_key_values.0.value' holds keys: model.onnx reads it as values",
        ),
        (
            {"past_key": NAMES.past_value},
            "'past_key_values.0.value' past_value of layer 0: doc kv makes",
        ),
    ],
)
def test_a_wrong_declaration_of_state_is_refused(resolve, other, message):
    with pytest.raises(InvalidPackage, match=message):
        resolve(PlainSpec(), state_declared(**other))


def test_a_part_of_the_state_declared_is_completed_by_structure(resolve):
    spec = renamed(PlainSpec())
    said = Declaration(Role.PAST_KEY, "d1", 1, "doc kv")
    ports = resolve(spec, [said])
    assert roles(ports) == expected(spec)
    why = {(one.role, one.layer): one.why for one in ports.bindings}
    assert why[Role.PAST_KEY, 1] == "doc kv"
    assert why[Role.PAST_KEY, 0].startswith("structure:")


def test_a_part_of_the_state_declared_against_the_structure_is_refused(resolve):
    said = Declaration(Role.PAST_VALUE, "d1", None, "doc kv")
    with pytest.raises(InvalidPackage, match=r"in model.onnx it is the past_key of layer 1"):
        resolve(renamed(PlainSpec()), [said])


def test_a_declared_output_that_repeats_state_is_the_present(resolve):
    def repeat(graph):
        graph.node.append(helper.make_node("Identity", ["present.0.key"], ["again"]))
        shape = ["batch_size", 2, "total_length", 8]
        graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, shape))

    said = Declaration(Role.PRESENT_KEY, "again", 0, "doc kv")
    ports = resolve(PlainSpec(), [said], change=repeat)
    assert ports.state[0][2].name == "again"
    assert [one.value for one in ports.ignored] == ["present.0.key"]


def test_a_declared_port_of_the_wrong_type_is_refused(resolve):
    said = Declaration(Role.INPUT_IDS, "past_key_values.0.key", None, "doc input")
    with pytest.raises(InvalidPackage, match=r"in model.onnx it is past_key"):
        resolve(PlainSpec(), [said])


def test_logits_of_whole_numbers_are_refused(resolve):
    def whole(graph):
        port = next(port for port in graph.output if port.name == "logits")
        port.type.tensor_type.elem_type = TensorProto.INT64

    said = Declaration(Role.LOGITS, "logits", None, "doc logits")
    with pytest.raises(InvalidPackage, match="it cannot be of type int64: doc logits"):
        resolve(PlainSpec(), [said], change=whole)


def test_positions_of_several_axes_are_refused(resolve):
    def axes(graph):
        port = next(port for port in graph.input if port.name == "position_ids")
        port.type.tensor_type.shape.dim.add().dim_param = "axes"

    with pytest.raises(UnsupportedModel, match="it has 3 axes where 2 can be fed"):
        resolve(PlainSpec(), change=axes)


def test_state_whose_operator_is_not_known_is_paired_by_its_names(resolve):
    """A Concat behind an operator of another domain, of which nothing is known."""

    def hide(graph):
        for node in graph.node:
            if node.op_type == "Concat" and node.input[0].startswith("past"):
                node.op_type, node.domain = "Append", "some.where"

    ports = resolve(PlainSpec(), change=hide)
    assert roles(ports) == expected(PlainSpec())
    why = next(one.why for one in ports.bindings if one.role is Role.PAST_KEY)
    assert why == "names: key 0 of both"


def test_state_of_which_nothing_tells_the_half_is_an_error(resolve):
    """Softmax is spelled in operators that do not say what they are, and names tell nothing."""

    def hide(graph):
        for node in graph.node:
            if node.op_type == "Softmax":
                node.op_type = "Normalise"
                node.domain = "some.where"

    with pytest.raises(InvalidPackage) as caught:
        resolve(renamed(PlainSpec()), change=hide)
    assert "neither its operators nor its name tell whether it is a key or a value" in str(
        caught.value
    )
    assert "Say it in config.json io" in str(caught.value)


def test_a_quantised_embedding_is_an_embedding(resolve):
    def quantise(graph):
        gather = next(node for node in graph.node if "embedding" in node.input)
        graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]))
        graph.initializer.append(
            helper.make_tensor("rows", TensorProto.INT8, [64, 32], [1] * (64 * 32))
        )
        gather.input[0] = "table"
        node = helper.make_node("DequantizeLinear", ["rows", "scale"], ["table"])
        graph.node.insert(0, node)

    ports = resolve(renamed(PlainSpec()), change=quantise)
    why = next(one.why for one in ports.bindings if one.role is Role.INPUT_IDS)
    assert why == "structure: it indexes the embedding 'rows', 64 x 32"


@pytest.mark.parametrize("layers", [2, 3])
def test_a_layer_that_reads_the_state_of_the_first_adds_none(resolve, layers):
    """The last layer reads the first one's keys and values; order is that of the first reader."""
    last = layers - 1

    def share(graph):
        dropped = {
            f"{kind}.{last}.{half}" for kind in ("past_key_values", "present") for half in KV
        }
        appended = {
            node.input[0]: node.output[0]
            for node in graph.node
            if node.op_type == "Concat" and node.input[0].startswith("past")
        }
        first = {
            appended[f"past_key_values.{last}.{half}"]: appended[f"past_key_values.0.{half}"]
            for half in KV
        }
        for field in ("node", "input", "output"):
            kept = []
            for item in getattr(graph, field):
                if field == "node":
                    item.input[:] = [first.get(name, name) for name in item.input]
                    names = {*item.input, *item.output}
                else:
                    names = {item.name}
                if not dropped & names:
                    kept.append(type(item).FromString(item.SerializeToString()))
            del getattr(graph, field)[:]
            getattr(graph, field).extend(kept)

    spec = PlainSpec(layers=layers)
    assert roles(resolve(spec, change=share)) == expected(replace(spec, layers=last))


def test_a_graph_that_runs_in_a_circle_does_not_hang(resolve):
    """No order of execution exists; what the ports are is told all the same, or refused."""

    def circle(graph):
        for node in graph.node:
            if node.op_type == "MatMul" and node.output[0] == graph.node[-1].input[0]:
                graph.node.append(helper.make_node("Reshape", ["round", "x"], ["back"]))
                graph.node.append(helper.make_node("Identity", ["back"], ["round"]))
                node.input[1] = "round"

    ports = resolve(PlainSpec(), change=circle)
    assert len(ports.state) == 2
