import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from support.tiny_onnx import TinySpec, make_decoder, save_decoder
from tokenmill.core.errors import CorruptFile, InvalidPackage, TokenmillError
from tokenmill.package.model_package import Port
from tokenmill.package.onnx_file import Branch, read_onnx

TINY = make_decoder(TinySpec(layers=1, hidden=32, ffn=32, vocab=32, bits=4)).SerializeToString()


def save(path, nodes=(), inputs=(), outputs=(), weights=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "spec", [TinySpec(), TinySpec(bits=4, head_bits=8), TinySpec(external=True)], ids=str
)
def test_the_header_is_what_the_onnx_library_reads(tmp_path, spec):
    path = save_decoder(spec, tmp_path)
    found = read_onnx(path)
    expected = onnx.load(path, load_external_data=False)
    assert found.ir_version == expected.ir_version
    assert found.opsets == {entry.domain: entry.version for entry in expected.opset_import}
    assert [port.name for port in found.inputs] == [port.name for port in expected.graph.input]
    assert [port.name for port in found.outputs] == [port.name for port in expected.graph.output]
    assert [node.outputs for node in found.nodes] == [
        tuple(node.output) for node in expected.graph.node
    ]
    assert [node.inputs for node in found.nodes] == [
        tuple(node.input) for node in expected.graph.node
    ]
    assert [(w.name, w.dims) for w in found.initializers] == [
        (w.name, tuple(w.dims)) for w in expected.graph.initializer
    ]
    whole = onnx.load(path)
    assert found.weight_bytes == sum(
        numpy_helper.to_array(w).nbytes for w in whole.graph.initializer
    )


def test_ports_have_types_sizes_and_symbols(tmp_path):
    shape = ["batch", None, 0, 64]
    value = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, shape)
    scalar = helper.make_tensor_value_info("s", TensorProto.INT32, [])
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None)
    found = read_onnx(save(tmp_path / "m", inputs=[value, scalar], outputs=[sequence]))
    assert found.inputs == [
        Port("x", "bfloat16", ("batch", "", 0, 64), True),
        Port("s", "int32", (), True),
    ]
    assert found.outputs == [Port("q", "sequence", (), False)]


def test_weights_that_are_listed_as_inputs_are_no_ports(tmp_path):
    weight = numpy_helper.from_array(np.zeros(3, np.float32), "w")
    listed = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]),
    ]
    found = read_onnx(save(tmp_path / "m", inputs=listed, weights=[weight]))
    assert [port.name for port in found.inputs] == ["x"]


def test_operators_are_counted_with_their_domain_and_inside_subgraphs(tmp_path):
    weight = numpy_helper.from_array(np.zeros(4, np.int8), "inner")
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "b", [], [], [weight])
    nodes = [
        helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch),
        helper.make_node("Gelu", ["z"], ["o"], domain="com.microsoft"),
        helper.make_node("Relu", ["o"], ["p"], domain="ai.onnx"),
    ]
    found = read_onnx(save(tmp_path / "m", nodes))
    assert found.operators == {"Relu": 3, "If": 1, "com.microsoft.Gelu": 1}
    assert [tensor.name for tensor in found.initializers] == ["inner", "inner"]


def test_attributes_are_numbers_texts_and_lists(tmp_path):
    node = helper.make_node("X", [], ["y"], i=-3, f=0.5, s="text", many=[1, -2], tensor=None)
    found = read_onnx(save(tmp_path / "m", [node]))
    assert found.nodes[0].attributes == {"i": -3, "f": 0.5, "s": "text", "many": (1, -2)}


def test_sizes_of_packed_types_are_rounded_up_to_bytes(tmp_path):
    tensor = TensorProto(name="w", data_type=TensorProto.UINT4, dims=[3], raw_data=b"\0\0")
    assert read_onnx(save(tmp_path / "m", weights=[tensor])).initializers[0].nbytes == 2


def test_weights_that_share_their_bytes_count_once(tmp_path):
    tensors = []
    for name in ("a", "b"):
        tensor = TensorProto(name=name, data_type=1, dims=[4], data_location=1)
        tensor.external_data.add(key="location", value="data")
        tensor.external_data.add(key="offset", value="64")
        tensors.append(tensor)
    found = read_onnx(save(tmp_path / "m", weights=tensors))
    assert found.weight_bytes == 16
    assert found.initializers[0][4:] == ("data", 64, -1)


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (TensorProto(name="w", data_type=1, dims=[3], raw_data=b"abc"), "3 bytes where its shape"),
        (TensorProto(name="w", data_type=1, dims=[1 << 20, 2560]), "0 bytes where its shape"),
        (TensorProto(name="w", data_type=1, dims=[9], float_data=[1]), "4 bytes where its shape"),
        (TensorProto(name="w", data_type=99, dims=[3]), "no element type 99"),
        (TensorProto(name="w", dims=[3]), "'w' has no element type"),
        (TensorProto(name="w", data_type=1, dims=[-1]), "a dimension is -1"),
        (TensorProto(name="w", data_type=1, dims=[1] * 65), "more than 64 dimensions"),
    ],
)
def test_a_tensor_that_cannot_be_is_named(tmp_path, tensor, why):
    with pytest.raises(CorruptFile, match=why):
        read_onnx(save(tmp_path / "m", weights=[tensor]))


@pytest.mark.parametrize(
    "tensor",
    [
        helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("w", TensorProto.INT64, [2], [0, 1]),
        helper.make_tensor("w", TensorProto.FLOAT16, [2], [0.0, 1.0]),
        helper.make_tensor("w", TensorProto.INT4, [3], [0, 1, 2]),
        helper.make_tensor("w", TensorProto.DOUBLE, [1], [1.0]),
        helper.make_tensor("w", TensorProto.UINT64, [1], [0]),
        helper.make_tensor("w", TensorProto.STRING, [1], [b"text"]),
        helper.make_tensor("w", TensorProto.FLOAT, [0], []),
    ],
    ids=lambda tensor: TensorProto.DataType.Name(tensor.data_type),
)
def test_numbers_may_stand_in_fields_of_their_type(tmp_path, tensor):
    [found] = read_onnx(save(tmp_path / "m", weights=[tensor])).initializers
    assert (found.name, found.dims, found.offset) == ("w", tuple(tensor.dims), -1)


@pytest.mark.parametrize("number", ["-1", "1e3", "٣", "9" * 20, "0x10"])
def test_external_data_with_an_offset_that_is_no_number(tmp_path, number):
    tensor = TensorProto(name="w", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value="data")
    tensor.external_data.add(key="offset", value=number)
    with pytest.raises(CorruptFile, match="external data has the offset"):
        read_onnx(save(tmp_path / "m", weights=[tensor]))


@pytest.mark.parametrize("kept", [1, 10, 100, len(TINY) // 2, len(TINY) - 1])
def test_a_file_that_is_cut_off_names_itself_and_the_offset(tmp_path, kept):
    path = tmp_path / "model.onnx"
    path.write_bytes(TINY[:kept])
    with pytest.raises(CorruptFile, match=r"model\.onnx is damaged at byte \d+"):
        read_onnx(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>not found</html>", "is damaged at byte 0"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is damaged"),
        (b"\x08\x0a", "holds no graph"),
    ],
)
def test_a_file_that_is_no_model(tmp_path, content, why):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=why):
        read_onnx(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidPackage, match=r"cannot read .*none\.onnx: No such file"):
        read_onnx(tmp_path / "none.onnx")


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(InvalidPackage, match="cannot read"):
        read_onnx(tmp_path)


def test_subgraphs_nested_too_deep_are_refused(tmp_path):
    graph = b"\x0a\x00"  # a node without fields
    for _ in range(40):
        attribute = b"\x32" + _length(graph) + graph
        node = b"\x2a" + _length(attribute) + attribute
        graph = b"\x0a" + _length(node) + node
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + _length(graph) + graph)
    with pytest.raises(CorruptFile, match="nested more than 32 deep"):
        read_onnx(path)


def _length(data):
    number, out = len(data), b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def read_bytes(path, content):
    path.write_bytes(content)
    try:
        read_onnx(path)
    except TokenmillError as error:
        assert str(path) in str(error)  # noqa: PT017  # either outcome is right


@settings(max_examples=300, deadline=2000)
@given(content=st.binary(max_size=400))
@example(content=b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    read_bytes(tmp_path_factory.getbasetemp() / "fuzz.onnx", content)


@settings(max_examples=300, deadline=2000)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(TINY) - 1), st.integers(0, 255)), max_size=8),
    kept=st.integers(0, len(TINY)),
)
def test_a_damaged_model_is_read_or_refused(tmp_path_factory, edits, kept):
    content = bytearray(TINY)
    for position, value in edits:
        content[position] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.onnx"
    read_bytes(path, bytes(content))
    read_bytes(path, bytes(content[:kept]))


def test_a_branch_knows_its_scope_and_what_it_returns(tmp_path):
    def branch(name, operator):
        made = onnx.helper.make_node(operator, ["x"], ["y"])
        out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
        return onnx.helper.make_graph([made], name, [], [out])

    node = onnx.helper.make_node(
        "If", ["c"], ["z"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs")
    )
    ports = [
        onnx.helper.make_tensor_value_info(name, kind, [1])
        for name, kind in (("c", onnx.TensorProto.BOOL), ("x", 1), ("z", 1))
    ]
    graph = onnx.helper.make_graph([node], "g", ports[:2], ports[2:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    nodes = read_onnx(tmp_path / "model.onnx").nodes
    assert [(one.operator, one.scope) for one in nodes] == [("Abs", 1), ("Neg", 2), ("If", 0)]
    assert nodes[2].branches == (Branch(1, (), ("y",)), Branch(2, (), ("y",)))
