import re

import pytest
from onnx import TensorProto, helper

from tokenmill.core.errors import InvalidPackage
from tokenmill.package.onnx_file import read_onnx
from tokenmill.package.wiring import check_wiring


def node(operator, inputs, outputs, name="", **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), name=name, **attributes)


def branch(*nodes, output):
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1])
    return helper.make_graph(list(nodes), "branch", [], [result])


@pytest.fixture
def check(tmp_path):
    """Checks a graph of these nodes: inputs x and flag, a weight w, the output y."""

    def run(*nodes):
        graph = helper.make_graph(
            list(nodes),
            "main",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
                helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
            [helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])],
        )
        file = tmp_path / "model.onnx"
        file.write_bytes(helper.make_model(graph).SerializeToString())
        check_wiring(read_onnx(file))

    return run


def test_nodes_out_of_order_are_sound(check):
    check(node("Add", "a w", "y"), node("Neg", "x", "a"))


def test_an_absent_operand_is_sound(check):
    first = node("Clip", "x", "a")
    first.input.extend(["", "w"])
    check(first, node("Neg", "a", "y"))


def test_a_branch_sees_what_surrounds_it(check):
    inner = branch(node("Add", "a w", "b"), output="b")
    check(node("Neg", "x", "a"), node("If", "flag", "y", then_branch=inner, else_branch=inner))


def test_branches_may_use_one_name_for_different_values(check):
    inner = branch(node("Add", "x w", "b"), output="b")
    other = branch(node("Neg", "x", "b"), output="b")
    check(node("If", "flag", "y", then_branch=inner, else_branch=other))


REFUSED = {
    "its own output": (
        [node("Add", "x y", "y", "sum")],
        "the node Add 'sum' of model.onnx: it reads its own output 'y'",
    ),
    "a circle": (
        [
            node("Add", "x c", "a", "one"),
            node("Neg", "a", "b"),
            node("Neg", "b", "c"),
            node("Neg", "c", "y"),
        ],
        "the node Add 'one' of model.onnx: it waits for itself, by way of Neg that makes 'c', Neg",
    ),
    "a circle through a branch": (
        [
            node(
                "If",
                "flag",
                "a",
                "choose",
                then_branch=branch(node("Neg", "y", "b"), output="b"),
                else_branch=branch(node("Neg", "x", "b"), output="b"),
            ),
            node("Neg", "a", "y"),
        ],
        "the node If 'choose' of model.onnx: it waits for itself, by way of Neg that makes 'y'",
    ),
    "a branch that reads its holder": (
        [
            node(
                "If",
                "flag",
                "y",
                "choose",
                then_branch=branch(node("Neg", "y", "b"), output="b"),
                else_branch=branch(node("Neg", "x", "b"), output="b"),
            ),
        ],
        "the node If 'choose' of model.onnx: it reads its own output 'y'",
    ),
    "nothing made": (
        [node("Add", "x z", "y", "sum")],
        "the node Add 'sum' of model.onnx: it reads 'z', which nothing makes",
    ),
    "nothing made for a branch": (
        [
            node(
                "If",
                "flag",
                "y",
                "choose",
                then_branch=branch(output="z"),
                else_branch=branch(output="w"),
            )
        ],
        "the node If 'choose' of model.onnx: it reads 'z', which nothing makes",
    ),
    "two makers": (
        [node("Neg", "x", "y", "one"), node("Abs", "x", "y", "two")],
        "the node Abs 'two' of model.onnx: it makes 'y', which another node makes, too",
    ),
    "no output": (
        [node("Neg", "x", "z")],
        "the output 'y' of model.onnx: no node makes it",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_graph_that_cannot_run_is_refused(check, fault):
    nodes, message = REFUSED[fault]
    with pytest.raises(InvalidPackage, match=re.escape(message)):
        check(*nodes)


def test_a_long_chain_is_checked_without_recursion(check):
    chain = [node("Neg", f"v{n + 1}", f"v{n}") for n in range(5000)]
    check(*chain, node("Neg", "x", "v5000"), node("Neg", "v0", "y"))
