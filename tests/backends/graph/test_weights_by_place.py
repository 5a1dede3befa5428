from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tokenmill.backends.graph.weights_by_place import weights_by_place

LARGE = np.arange(150 * 200, dtype=np.float32).reshape(150, 200)


def save(file: Path, *, twice: bool = False) -> onnx.ModelProto:
    """A product with a large weight and a sum with a small one."""
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(LARGE, "large"), numpy_helper.from_array(LARGE[0], "small")]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "large"], ["y"]),
            helper.make_node("Add", ["y", "small"], ["z"]),
        ],
        "graph",
        [value("x", TensorProto.FLOAT, [1, 150])],
        [value("z", TensorProto.FLOAT, [1, 200])],
        weights,
    )
    if twice:
        branch = helper.make_graph(
            [], "branch", [], [value("large", TensorProto.FLOAT, None)], [weights[0]]
        )
        branch.initializer[0].raw_data = (LARGE + 1).tobytes()
        node = helper.make_node("If", ["c"], ["w"], then_branch=branch, else_branch=branch)
        graph.node.append(node)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, file)
    return model


def test_large_weights_are_read_from_the_file_they_are_in(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    model = save(file)
    weights_by_place(model, file, file.read_bytes())
    small = model.SerializeToString()
    assert len(small) < 2000
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    session = onnxruntime.InferenceSession(small, options, providers=["CPUExecutionProvider"])
    x = np.eye(1, 150, 7, dtype=np.float32)
    (z,) = session.run(None, {"x": x})
    assert np.array_equal(z, LARGE[7:8] + LARGE[0])


def test_small_weights_stay_in_the_graph(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    model = save(file)
    weights_by_place(model, file, file.read_bytes())
    small = next(tensor for tensor in model.graph.initializer if tensor.name == "small")
    assert np.array_equal(numpy_helper.to_array(small), LARGE[0])


def test_of_two_weights_of_one_name_the_other_is_never_taken(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    model = save(file, twice=True)
    content = file.read_bytes()
    weights_by_place(model, file, content)
    (large,) = [tensor for tensor in model.graph.initializer if tensor.name == "large"]
    if large.raw_data:
        assert large.raw_data == LARGE.tobytes()
    else:
        place = {entry.key: entry.value for entry in large.external_data}
        start = int(place["offset"])
        assert content[start : start + LARGE.nbytes] == LARGE.tobytes()


def test_a_file_that_changed_meanwhile_is_not_referred_to(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    model = save(file)
    content = file.read_bytes()
    file.write_bytes(b"garbage")
    before = model.SerializeToString()
    weights_by_place(model, file, content)
    assert model.SerializeToString() == before
