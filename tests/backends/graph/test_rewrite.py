"""Rewritten graphs, and the cache that lets a warm start do without a graph library."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import onnx
import onnxruntime
import pytest

from support.plain_layer import ports_of
from support.tiny_onnx import TinySpec, save_decoder
from support.tiny_plain import PlainSpec, make_plain
from tokenmill.backends.graph import apply as apply_module
from tokenmill.backends.graph.ports import (
    LENGTHS_INPUT,
    POSITIONS_INPUT,
    TOTAL_INPUT,
    DecoderPorts,
)
from tokenmill.backends.graph.rewrite import Rewritten, rewrite
from tokenmill.backends.graph.weight_reads import WeightRead, are_unchanged, digest_of
from tokenmill.core.errors import CorruptFile, InvalidPackage

PORTS = DecoderPorts("logits", "attention_mask", "input_ids", in_place=True)


def rewritten(file: Path, cache: Path | None = None) -> bytes:
    result = rewrite(file, PORTS, cache)
    assert (result.shares_buffers, result.notes) == (False, ())
    assert result.graph is not None
    return result.graph


def inputs_of(content: bytes) -> set[str]:
    return {port.name for port in onnx.ModelProto.FromString(content).graph.input}


def test_both_rewrites_show_in_the_inputs(tmp_path: Path) -> None:
    content = rewritten(save_decoder(TinySpec(), tmp_path))
    model = onnx.ModelProto.FromString(content)
    onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert {POSITIONS_INPUT, LENGTHS_INPUT, TOTAL_INPUT} < inputs_of(content)
    assert "attention_mask" not in inputs_of(content)
    assert {node.op_type for node in model.graph.node} & {"Shape", "ReduceSum", "Sub"} == set()
    logits = next(port for port in model.graph.output if port.name == "logits")
    dims = logits.type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["num_logits", 96]


def test_a_mask_with_another_use_stays(tmp_path: Path) -> None:
    content = rewritten(save_decoder(TinySpec(mask_needed=True), tmp_path))
    assert POSITIONS_INPUT in inputs_of(content)
    assert "attention_mask" in inputs_of(content)
    assert LENGTHS_INPUT not in inputs_of(content)


def test_external_weights_stay_where_they_are(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    content = rewritten(save_decoder(TinySpec(external=True), tmp_path), cache)
    (file,) = cache.iterdir()
    assert file.stat().st_size < 0.2 * (tmp_path / "model.onnx.data").stat().st_size
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def test_the_second_start_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_decoder(TinySpec(), tmp_path)
    first = rewrite(file, PORTS, tmp_path / "cache")
    monkeypatch.delattr(apply_module, "apply_rewrites")
    assert rewrite(file, PORTS, tmp_path / "cache") == first


def test_that_nothing_applies_is_remembered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_decoder(TinySpec(), tmp_path)
    ports = DecoderPorts("other", None)
    assert rewrite(file, ports, tmp_path / "cache") == Rewritten(None, False, ())
    monkeypatch.delattr(apply_module, "apply_rewrites")
    assert rewrite(file, ports, tmp_path / "cache") == Rewritten(None, False, ())


def test_another_graph_is_another_entry(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for seed in (0, 1):
        rewrite(save_decoder(TinySpec(seed=seed), tmp_path), PORTS, cache)
    rewrite(tmp_path / "model.onnx", DecoderPorts("logits", None), cache)
    assert len(list(cache.iterdir())) == 3


def test_weights_beside_a_graph_that_were_looked_at_are_part_of_the_entry(tmp_path: Path) -> None:
    spec = PlainSpec(positions="table", head_dim=16)
    file, ports, cache = tmp_path / "model.onnx", ports_of(spec), tmp_path / "cache"
    data = tmp_path / "model.onnx.data"
    model = make_plain(spec)
    onnx.save(model, file, save_as_external_data=True, location=data.name, size_threshold=0)
    graph, first = file.read_bytes(), data.read_bytes()
    before = rewrite(file, ports, cache)
    assert before.shares_buffers
    (place, *_) = [read for read in before.reads if read.length == spec.context * 8 * 4]
    end = place.offset + place.length
    data.write_bytes(first[: place.offset] + bytes(place.length) + first[end:])
    after = rewrite(file, ports, cache)
    assert after == rewrite(file, ports)
    assert after.graph != before.graph
    data.write_bytes(first)
    assert (rewrite(file, ports, cache), file.read_bytes()) == (before, graph)
    assert len(list(cache.iterdir())) == 2


def test_weights_that_are_gone_are_not_taken_for_those_looked_at(tmp_path: Path) -> None:
    read = WeightRead("model.onnx.data", 2, 4, digest_of(b"2345"))
    assert not are_unchanged(tmp_path, [read])
    (tmp_path / read.location).write_bytes(b"0123456")
    assert are_unchanged(tmp_path, [read])
    (tmp_path / read.location).write_bytes(b"01234")
    assert not are_unchanged(tmp_path, [read])


def test_weights_inside_are_named_by_the_file_they_are_in(tmp_path: Path) -> None:
    spec, cache = PlainSpec(vocab=600), tmp_path / "cache"
    file, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    onnx.save(make_plain(spec), file)
    other.write_bytes(file.read_bytes())
    for each in (file, other):
        graph = rewrite(each, ports_of(spec), cache).graph
        assert graph is not None
        outside = [
            entry.value
            for tensor in onnx.ModelProto.FromString(graph).graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        ]
        assert outside == [each.name] * 2


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, damage: bytes | None) -> None:
    cache = tmp_path / "cache"
    file = save_decoder(TinySpec(), tmp_path)
    first = rewrite(file, PORTS, cache)
    (entry,) = cache.iterdir()
    sound = entry.read_bytes()
    entry.write_bytes(sound[:-1] if damage is None else damage)
    assert rewrite(file, PORTS, cache) == first
    assert [path.read_bytes() for path in cache.iterdir()] == [sound]


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    file = save_decoder(TinySpec(), tmp_path)
    assert rewrite(file, PORTS, tmp_path / "cache") == rewrite(file, PORTS)


def test_large_graphs_with_weights_inside_are_not_copied_to_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.backends.graph.rewrite._MAX_CACHED_BYTES", 1000)
    rewritten(save_decoder(TinySpec(), tmp_path), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidPackage, match="absent"):
        rewrite(tmp_path / "absent.onnx", PORTS)
    (tmp_path / "bad.onnx").write_bytes(b"garbage")
    with pytest.raises(CorruptFile, match="bad"):
        rewrite(tmp_path / "bad.onnx", PORTS)


def test_a_warm_start_imports_no_graph_library(tmp_path: Path) -> None:
    file = save_decoder(TinySpec(external=True), tmp_path)
    rewrite(file, PORTS, tmp_path / "cache")
    script = """
        import sys
        from pathlib import Path
        from tokenmill.backends.graph.ports import DecoderPorts
        from tokenmill.backends.graph.rewrite import Probe, Rewritten, rewrite
        import tokenmill.backends.ort.backend
        file, cache = map(Path, sys.argv[1:])
        ports = DecoderPorts("logits", "attention_mask", "input_ids", in_place=True)
        assert rewrite(file, ports, cache).graph
        assert "onnx" not in sys.modules, "onnx was imported"
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(file), str(tmp_path / "cache")]
    subprocess.run(command, check=True, timeout=60)
