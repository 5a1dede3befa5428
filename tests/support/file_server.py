"""A web server on this machine that knows ranges, and can lose connections."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Files(BaseHTTPRequestHandler):
    """Serves `server.files`; notes each request in `server.asked` as (path, range, key)."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        path = self.path.split("?")[0]
        wanted = self.headers.get("Range")
        server.asked.append((path, wanted, self.headers.get("Authorization")))
        if path in server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if path not in server.files:
            self.send_error(404)
            return
        data = server.files[path]
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if wanted and server.knows_ranges:
            if begin >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        else:
            begin = 0
            self.send_response(200)
        body = data[begin:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        lost = server.lost_after.pop(0) if server.lost_after else None
        self.wfile.write(body if lost is None else body[:lost])
        self.wfile.flush()
        self.close_connection = True


@contextmanager
def file_server(files):
    """Yields a running server.

    Its attributes: `url`; `asked`; `redirects`, path to address; `knows_ranges`; `lost_after`, for
    the coming answers the number of bytes after which each is lost.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        server.files, server.asked, server.redirects = files, [], {}
        server.knows_ranges, server.lost_after = True, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
