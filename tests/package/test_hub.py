"""The hub client against a local imitation: revisions, file patterns, offline, errors."""

import os
import signal
import subprocess
import sys
import threading

import onnx
import pytest

from support import hub_imitation as imitation
from support.hub_imitation import ASKED, FILES, HALF, LARGE, hub_imitation
from support.tiny_genai import write_genai
from support.tiny_onnx import TinySpec
from tokenmill.core.errors import DownloadFailed, InvalidOption, ModelNotFound
from tokenmill.package import hub
from tokenmill.package.cache import Cache
from tokenmill.package.load import LoadOptions, load_package


@pytest.fixture(autouse=True)
def clean_slate():
    """Lets each test begin with the files of the module, and no requests."""
    ASKED.clear()
    yield
    LARGE.clear()
    HALF.clear()


def fetched(directory):
    return sorted(
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )


def downloads():
    """Returns the files whose content was asked for."""
    asked = (path for method, path, _ in ASKED if method == "GET" and "/resolve/" in path)
    return [path.split("/", 5)[5] for path in asked]


@pytest.fixture(scope="module")
def endpoint():
    with hub_imitation() as address:
        yield address


def test_a_repository_is_fetched_whole(endpoint, tmp_path):
    directory = hub.fetch("org/tiny", Cache(tmp_path), endpoint=endpoint)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == FILES["main"]


def test_a_revision_and_patterns_are_respected(endpoint, tmp_path):
    directory = hub.fetch(
        "org/tiny", Cache(tmp_path), revision="v2", patterns=["*.onnx"], endpoint=endpoint
    )
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        "model.onnx": b"second graph"
    }


def test_offline_finds_what_was_fetched_and_nothing_else(endpoint, tmp_path):
    cache = Cache(tmp_path)
    online = hub.fetch("org/tiny", cache, endpoint=endpoint)
    assert hub.fetch("org/tiny", cache, offline=True) == online
    with pytest.raises(DownloadFailed, match="org/other could not be fetched"):
        hub.fetch("org/other", cache, offline=True)


def test_an_unknown_repository_or_revision_is_not_found(endpoint, tmp_path):
    with pytest.raises(ModelNotFound, match="org/other"):
        hub.fetch("org/other", Cache(tmp_path), endpoint=endpoint)
    with pytest.raises(ModelNotFound, match="v9"):
        hub.fetch("org/tiny", Cache(tmp_path), revision="v9", endpoint=endpoint)


def test_a_gated_repository_says_how_to_get_in(endpoint, tmp_path):
    with pytest.raises(ModelNotFound, match=r"org/gated is not open to you.*HF_TOKEN"):
        hub.fetch("org/gated", Cache(tmp_path), endpoint=endpoint)


def test_a_hub_that_is_out_of_order_is_a_failed_download(endpoint, tmp_path):
    with pytest.raises(DownloadFailed, match="org/broken could not be fetched"):
        hub.fetch("org/broken", Cache(tmp_path), endpoint=endpoint)


def test_the_environment_can_forbid_to_ask_the_hub(endpoint, tmp_path):
    script = """
import sys
from pathlib import Path
from tokenmill.core.errors import DownloadFailed
from tokenmill.package import hub
from tokenmill.package.cache import Cache
try:
    hub.fetch("org/tiny", Cache(Path(sys.argv[1])), endpoint=sys.argv[2])
except DownloadFailed as error:
    print(error.why)
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), endpoint],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "it is not in the cache, and the hub was not asked"


def test_a_commit_is_a_revision(endpoint, tmp_path):
    directory = hub.fetch("org/tiny", Cache(tmp_path), revision="b" * 40, endpoint=endpoint)
    assert (directory / "model.onnx").read_bytes() == b"second graph"


def test_weights_beside_the_graph_load_from_the_hubs_cache(endpoint, tmp_path, monkeypatch):
    made = write_genai(tmp_path / "made", spec=TinySpec(external=True))
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    monkeypatch.setitem(FILES, "v2", files)
    cache = Cache(tmp_path / "cache")
    directory = hub.fetch("org/tiny", cache, revision="v2", endpoint=endpoint)
    package = load_package(directory)
    assert package.fingerprint == load_package(made).fingerprint
    assert hub.fetch("org/tiny", cache, revision="v2", offline=True) == directory
    assert [(entry.kind, entry.name) for entry in cache.list()] == [("hub", "org/tiny")]


def test_a_single_gguf_file_is_fetched_by_its_pattern(endpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(FILES, "v2", {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"})
    directory = hub.fetch(
        "org/tiny", Cache(tmp_path), revision="v2", patterns=["a.gguf"], endpoint=endpoint
    )
    assert [path.name for path in directory.iterdir()] == ["a.gguf"]


def test_a_hub_that_does_not_answer_is_a_failed_download(tmp_path):
    with pytest.raises(DownloadFailed, match="org/tiny could not be fetched"):
        hub.fetch("org/tiny", Cache(tmp_path), endpoint="http://127.0.0.1:9")


EXPORT = {
    "config.json": b"{}",
    "tokenizer.json": b"[]",
    "onnx/model.onnx": b"full",
    "onnx/model_q4.onnx": b"four",
    "onnx/model_q4.onnx_data": b"weights of four bits" * 50,
    "model.safetensors": b"not ours",
}


@pytest.fixture
def export(monkeypatch):
    monkeypatch.setitem(FILES, "v2", dict(EXPORT))
    LARGE.update(("onnx/model_q4.onnx_data", "model.safetensors"))


def fetch_v2(endpoint, root, variant=None, **arguments):
    options = LoadOptions(variant=variant)
    return hub.fetch(
        "org/tiny", Cache(root), revision="v2", endpoint=endpoint, options=options, **arguments
    )


Q4 = ["config.json", "onnx/model_q4.onnx", "onnx/model_q4.onnx_data", "tokenizer.json"]
FULL = ["config.json", "onnx/model.onnx", "tokenizer.json"]


@pytest.mark.usefixtures("export")
def test_only_the_files_of_a_variant_are_fetched(endpoint, tmp_path):
    directory = fetch_v2(endpoint, tmp_path, "q4")
    assert fetched(directory) == Q4
    assert sorted(downloads()) == Q4
    data = directory / "onnx" / "model_q4.onnx_data"
    assert data.read_bytes() == EXPORT["onnx/model_q4.onnx_data"]
    assert data.is_symlink()
    assert list((tmp_path / "partials").iterdir()) == []


@pytest.mark.usefixtures("export")
def test_without_a_variant_the_files_that_would_be_read_are_fetched(endpoint, tmp_path):
    assert fetched(fetch_v2(endpoint, tmp_path)) == FULL
    ASKED.clear()
    assert fetched(fetch_v2(endpoint, tmp_path, "q4")) == sorted({*FULL, *Q4})
    assert sorted(downloads()) == ["onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """An export whose weights have a name that tells nothing."""
    made = write_genai(tmp_path / "made", spec=TinySpec(external=True))
    graph = onnx.load(made / "model.onnx", load_external_data=False)
    for tensor in graph.graph.initializer:
        for field in tensor.external_data:
            if field.key == "location":
                field.value = "of_the_model"
    data = (made / "model.onnx.data").read_bytes()
    named = {"onnx/model.onnx": graph.SerializeToString(), "onnx/of_the_model": data}
    monkeypatch.setitem(FILES, "v2", {"config.json": b"{}", **named, "onnx/other": b"not ours"})
    LARGE.add("onnx/of_the_model")


@pytest.mark.usefixtures("weights")
def test_weights_are_fetched_by_the_name_that_the_graph_gives_them(endpoint, tmp_path):
    directory = fetch_v2(endpoint, tmp_path)
    assert fetched(directory) == ["config.json", "onnx/model.onnx", "onnx/of_the_model"]
    assert fetch_v2(endpoint, tmp_path, offline=True) == directory
    (directory / "onnx" / "of_the_model").unlink()
    with pytest.raises(DownloadFailed, match="onnx/of_the_model is missing"):
        fetch_v2(endpoint, tmp_path, offline=True)


@pytest.mark.usefixtures("weights")
def test_files_that_the_user_names_are_not_added_to(endpoint, tmp_path):
    directory = fetch_v2(endpoint, tmp_path, patterns=["onnx/model.onnx"])
    assert fetched(directory) == ["onnx/model.onnx"]


@pytest.mark.usefixtures("export")
def test_patterns_of_the_user_go_before_the_choice(endpoint, tmp_path):
    patterns = ["*.safetensors", "onnx/model.onnx"]
    directory = fetch_v2(endpoint, tmp_path, "q4", patterns=patterns)
    assert fetched(directory) == ["model.safetensors", "onnx/model.onnx"]
    with pytest.raises(ModelNotFound, match=r"no file that matches \*\.gguf: it has config\.json"):
        fetch_v2(endpoint, tmp_path, patterns=["*.gguf"])


@pytest.mark.usefixtures("export")
def test_a_variant_that_is_not_there_costs_no_download(endpoint, tmp_path):
    with pytest.raises(InvalidOption, match="variant is 'q2'"):
        fetch_v2(endpoint, tmp_path, "q2")
    assert downloads() == []


@pytest.mark.usefixtures("export")
def test_offline_is_told_what_is_missing_and_asks_nobody(endpoint, tmp_path):
    directory = fetch_v2(endpoint, tmp_path)
    ASKED.clear()
    assert fetch_v2(endpoint, tmp_path, offline=True) == directory
    words = r"not complete in the cache: onnx/model_q4\.onnx, onnx/model_q4\.onnx_data is missing"
    with pytest.raises(DownloadFailed, match=words):
        fetch_v2(endpoint, tmp_path, "q4", offline=True)
    with pytest.raises(DownloadFailed, match="org/tiny could not be fetched: it is not in the c"):
        hub.fetch("org/tiny", Cache(tmp_path), offline=True, endpoint=endpoint)
    assert ASKED == []


@pytest.mark.usefixtures("export")
def test_a_commit_that_is_in_the_cache_needs_no_hub(endpoint, tmp_path):
    def fetch():
        return hub.fetch("org/tiny", Cache(tmp_path), revision="b" * 40, endpoint=endpoint)

    directory = fetch()
    ASKED.clear()
    assert fetch() == directory
    assert ASKED == []


@pytest.mark.usefixtures("export")
def test_a_hub_that_is_away_does_not_matter_where_all_is_in_the_cache(endpoint, tmp_path):
    directory = fetch_v2(endpoint, tmp_path, "q4")
    assert fetch_v2("http://127.0.0.1:9", tmp_path, "q4") == directory
    # Which of the two depends on the client's version: the old ones are content with the cache.
    with pytest.raises(DownloadFailed, match=r"could not be fetched|is not complete in the cache"):
        fetch_v2("http://127.0.0.1:9", tmp_path, "fp32")


@pytest.mark.usefixtures("export")
def test_a_client_that_is_content_with_half_is_not_believed(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_snapshot", lambda *arguments, local: tmp_path)
    words = (
        r"config\.json, tokenizer\.json, onnx/model\.onnx is missing, and the hub did not answer"
    )
    with pytest.raises(DownloadFailed, match=words):
        fetch_v2(endpoint, tmp_path)


@pytest.mark.usefixtures("export")
def test_a_large_file_with_another_checksum_is_refused(endpoint, tmp_path, monkeypatch):
    wrong = {"oid": "0" * 64, "size": 4, "pointerSize": 134}
    monkeypatch.setattr(imitation, "large", lambda data: wrong)
    with pytest.raises(DownloadFailed, match=r"model_q4\.onnx_data has another checksum"):
        fetch_v2(endpoint, tmp_path, "q4")
    assert list(Cache(tmp_path).partial("models--org--tiny").iterdir()) == []


@pytest.mark.usefixtures("export")
def test_half_a_file_that_a_killed_client_left_is_removed(endpoint, tmp_path):
    fetch_v2(endpoint, tmp_path)
    left = tmp_path / "hub" / "models--org--tiny" / "blobs" / "abc.12345678.incomplete"
    left.write_bytes(b"half")
    fetch_v2(endpoint, tmp_path)
    assert not left.exists()


PULL = """
import sys
from pathlib import Path
from tokenmill.cli.main import run_command
from tokenmill.package import hub
from tokenmill.package.cache import Cache
from tokenmill.package.load_options import LoadOptions
sys.exit(run_command(lambda: hub.fetch(
    "org/tiny", Cache(Path(sys.argv[1])), revision="v2", endpoint=sys.argv[2],
    options=LoadOptions(variant="q4"),
    progress=lambda what, done, total: print(done, flush=True),
)))
"""


@pytest.mark.usefixtures("export")
@pytest.mark.parametrize(("with_signal", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 4)])
def test_a_large_file_goes_on_where_a_killed_process_was(endpoint, tmp_path, with_signal, code):
    data = EXPORT["onnx/model_q4.onnx_data"]
    go_on = threading.Event()
    HALF["onnx/model_q4.onnx_data"] = go_on
    partial = Cache(tmp_path).partial("models--org--tiny")
    command = [sys.executable, "-c", PULL, str(tmp_path), endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.stdout.readline() != f"{len(data) // 2}\n":
            assert process.poll() is None
        process.send_signal(with_signal)
        assert process.wait(60) == code
    go_on.set()
    (entry,) = [one for one in Cache(tmp_path).list() if one.kind == "partial"]
    assert (entry.name, entry.size) == ("org/tiny", len(data) // 2)
    ASKED.clear()
    assert fetched(fetch_v2(endpoint, tmp_path, "q4")) == Q4
    assert [asked[2] for asked in ASKED if "onnx_data" in asked[1] and asked[0] == "GET"] == [
        f"bytes={len(data) // 2}-"
    ]
    assert not partial.exists()


def test_what_has_the_shape_of_an_id():
    assert hub.is_hub_id("org/name-1.5")
    assert not any(hub.is_hub_id(text) for text in ("name", "/abs/path", "a/b/c", "../x", "a/ b"))
