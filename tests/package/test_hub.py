"""The hub client against a local imitation: revisions, file patterns, offline, errors."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from support.tiny_genai import write_genai
from support.tiny_onnx import TinySpec
from tokenmill.core.errors import DownloadFailed, ModelNotFound
from tokenmill.package import hub
from tokenmill.package.cache import Cache
from tokenmill.package.load import load_package

FILES = {
    "main": {"genai_config.json": b"{}", "model.onnx": b"main graph", "notes.txt": b"hello"},
    "v2": {"genai_config.json": b"{}", "model.onnx": b"second graph"},
}
COMMITS = {"main": "a" * 40, "v2": "b" * 40}


class Imitation(BaseHTTPRequestHandler):
    """As much of a hub as one repository needs: org/tiny."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = unquote(self.path.split("?")[0])
        parts = path.strip("/").split("/")
        if parts[:4] == ["api", "models", "org", "tiny"]:
            self.api(parts[4:], body)
        elif parts[:3] == ["org", "tiny", "resolve"]:
            self.file(parts[3], "/".join(parts[4:]), body)
        elif "gated" in parts:
            self.send({"error": "Ask its owner"}, 403, body, code="GatedRepo")
        elif "broken" in parts:
            self.send({"error": "Out of order"}, 500, body)
        else:
            self.send({"error": "Repository not found"}, 404, body, code="RepoNotFound")

    def api(self, rest, body):
        revision = self.name_of(rest[1] if len(rest) > 1 else "main")
        if revision is None:
            self.send({"error": "Invalid rev"}, 404, body, code="RevisionNotFound")
        elif rest[:1] == ["tree"]:
            self.send(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": oid(data)}
                    for name, data in FILES[revision].items()
                ],
                200,
                body,
            )
        else:
            siblings = [{"rfilename": name} for name in FILES[revision]]
            info = {"_id": "1", "id": "org/tiny", "modelId": "org/tiny", "private": False}
            info |= {"sha": COMMITS[revision], "siblings": siblings, "tags": []}
            self.send(info, 200, body)

    def file(self, revision, name, body):
        revision = self.name_of(revision)
        data = FILES.get(revision, {}).get(name)
        if data is None:
            self.send({"error": "Entry not found"}, 404, body, code="EntryNotFound")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{oid(data)}"')
        self.send_header("X-Repo-Commit", COMMITS[revision])
        self.end_headers()
        if body:
            self.wfile.write(data)

    def name_of(self, revision):
        names = {commit: name for name, commit in COMMITS.items()} | {name: name for name in FILES}
        return names.get(revision)

    def send(self, document, status, body, code=""):
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", document["error"])
        self.end_headers()
        if body:
            self.wfile.write(data)


def oid(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture(scope="module")
def endpoint():
    with ThreadingHTTPServer(("127.0.0.1", 0), Imitation) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


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


def test_what_has_the_shape_of_an_id():
    assert hub.is_hub_id("org/name-1.5")
    assert not any(hub.is_hub_id(text) for text in ("name", "/abs/path", "a/b/c", "../x", "a/ b"))
