"""As much of a hub as one repository needs, on this machine."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

FILES = {
    "main": {"genai_config.json": b"{}", "model.onnx": b"main graph", "notes.txt": b"hello"},
    "v2": {"genai_config.json": b"{}", "model.onnx": b"second graph"},
}
COMMITS = {"main": "a" * 40, "v2": "b" * 40}
REPOSITORY = ["org", "tiny"]
LARGE = set()
"""Names of files in large-file storage."""
ASKED = []
"""(method, path, range) of each request."""
HALF = {}
"""Names of files whose next answer stops halfway, with the event that ends the wait."""


class Imitation(BaseHTTPRequestHandler):
    """Serves the repository `REPOSITORY`, its revisions `FILES`."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = unquote(self.path.split("?")[0])
        ASKED.append((self.command, path, self.headers.get("Range")))
        parts = path.strip("/").split("/")
        if parts[:4] == ["api", "models", *REPOSITORY]:
            self.api(parts[4:], body)
        elif parts[:3] == [*REPOSITORY, "resolve"]:
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
                    | ({"lfs": large(data)} if name in LARGE else {})
                    for name, data in FILES[revision].items()
                ],
                200,
                body,
            )
        else:
            siblings = [{"rfilename": name} for name in FILES[revision]]
            info = {
                "_id": "1",
                "id": "/".join(REPOSITORY),
                "modelId": "/".join(REPOSITORY),
                "private": False,
            }
            info |= {"sha": COMMITS[revision], "siblings": siblings, "tags": []}
            self.send(info, 200, body)

    def file(self, revision, name, body):
        revision = self.name_of(revision)
        data = FILES.get(revision, {}).get(name)
        if data is None:
            self.send({"error": "Entry not found"}, 404, body, code="EntryNotFound")
            return
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        etag = large(data)["oid"] if name in LARGE else oid(data)
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMITS[revision])
        self.end_headers()
        if not body:
            return
        halved = HALF.pop(name, None)
        self.wfile.write(data[begin:] if halved is None else data[begin : len(data) // 2])
        self.wfile.flush()
        if halved is not None:
            halved.wait()
            self.close_connection = True

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


def large(data):
    return {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}


@contextmanager
def hub_imitation():
    """Yields the address of a running imitation."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Imitation) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
