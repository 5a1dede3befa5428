import onnx
import pytest

from support.tiny_onnx import TinySpec, make_decoder
from tokenmill.package.flow import Flow
from tokenmill.package.onnx_file import read_onnx
from tokenmill.package.projection import key_head_dim


def first_attention(tmp_path, spec, **attributes):
    model = make_decoder(spec)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            for attribute in node.attribute:
                if attribute.name in attributes:
                    attribute.i = attributes[attribute.name]
    file = tmp_path / "model.onnx"
    onnx.save(model, file)
    graph = read_onnx(file)
    node = next(one for one in graph.nodes if one.operator.endswith("GroupQueryAttention"))
    return key_head_dim(Flow(graph), node)


@pytest.mark.parametrize(
    "spec",
    [
        TinySpec(head_dim=16),
        TinySpec(head_dim=16, packed=True),
        TinySpec(head_dim=16, bits=4),
        TinySpec(head_dim=16, bits=4, packed=True, correction=True),
    ],
)
def test_the_product_before_attention_tells_the_size_of_a_head(tmp_path, spec):
    assert first_attention(tmp_path, spec) == 16


def test_heads_that_do_not_divide_the_keys_tell_nothing(tmp_path):
    assert first_attention(tmp_path, TinySpec(), kv_num_heads=3) is None


def test_other_operators_tell_nothing(tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(make_decoder(TinySpec()), file)
    graph = read_onnx(file)
    assert key_head_dim(Flow(graph), graph.nodes[0]) is None
