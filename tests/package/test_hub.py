"""The hub client against a local imitation: revisions, file patterns, offline, errors."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from tokenmill.core.errors import DownloadFailed, ModelNotFound
from tokenmill.package import hub
from tokenmill.package.cache import Cache

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


def test_a_hub_that_does_not_answer_is_a_failed_download(tmp_path):
    with pytest.raises(DownloadFailed, match="org/tiny could not be fetched"):
        hub.fetch("org/tiny", Cache(tmp_path), endpoint="http://127.0.0.1:9")


def test_what_has_the_shape_of_an_id():
    assert hub.is_hub_id("org/name-1.5")
    assert not any(hub.is_hub_id(text) for text in ("name", "/abs/path", "a/b/c", "../x", "a/ b"))
