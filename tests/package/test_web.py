import pytest

from support.file_server import file_server
from tokenmill.core.errors import DownloadFailed
from tokenmill.package import web

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server():
    with file_server({"/a": CONTENT}) as running:
        yield running


@pytest.fixture
def file(tmp_path):
    with (tmp_path / "file").open("w+b") as opened:
        yield opened


def content(file):
    file.seek(0)
    return file.read()


def ranges(server):
    return [wanted for _, wanted, _ in server.asked]


def test_a_file_is_fetched_with_reports(server, file):
    reports = []
    web.append(f"{server.url}/a", file, 0, report=reports.append)
    assert content(file) == CONTENT
    assert (reports[0], reports[-1]) == (0, len(CONTENT))


def test_it_goes_on_behind_what_is_there(server, file):
    file.write(b"before" + CONTENT[:1000])
    web.append(f"{server.url}/a", file, 6)
    assert content(file) == b"before" + CONTENT
    assert ranges(server) == ["bytes=1000-"]


def test_a_whole_file_stays(server, file):
    file.write(CONTENT)
    web.append(f"{server.url}/a", file, 0)
    assert content(file) == CONTENT
    assert ranges(server) == [f"bytes={len(CONTENT)}-"]


def test_a_server_without_ranges_begins_anew(server, file):
    server.knows_ranges = False
    file.write(b"before" + b"wrong")
    web.append(f"{server.url}/a", file, 6)
    assert content(file) == b"before" + CONTENT


def test_a_file_that_is_shorter_now_begins_anew(server, file):
    file.write(CONTENT + b"more")
    web.append(f"{server.url}/a", file, 0)
    assert content(file) == CONTENT


def test_lost_connections_are_taken_up_again(server, file):
    server.lost_after = [100, 0, 0, 50]
    web.append(f"{server.url}/a", file, 0)
    assert content(file) == CONTENT
    assert ranges(server) == [None, "bytes=100-", "bytes=100-", "bytes=100-", "bytes=150-"]


def test_a_server_that_sends_nothing_three_times_is_given_up_and_what_came_stays(server, file):
    server.lost_after = [100, 0, 0, 0]
    with pytest.raises(DownloadFailed, match=r"/a could not be fetched"):
        web.append(f"{server.url}/a?key=secret", file, 0)
    assert content(file) == CONTENT[:100]


def test_an_error_of_the_server_is_told_without_the_query(server, file):
    with pytest.raises(DownloadFailed, match="the server answers 404") as raised:
        web.append(f"{server.url}/none?key=secret", file, 0)
    assert "secret" not in str(raised.value)


def test_a_server_that_is_not_there(file):
    with pytest.raises(DownloadFailed, match="Connection refused"):
        web.append("http://127.0.0.1:9/a", file, 0)


def test_a_key_goes_to_the_host_that_it_is_for_only(server, file):
    server.redirects = {
        "/same": "/a",
        "/other": f"{server.url}/a".replace("127.0.0.1", "localhost"),
    }
    for path in ("/same", "/other"):
        web.append(f"{server.url}{path}", file, 0, headers={"Authorization": "key"})
        file.truncate(0)
    assert [(path, key) for path, _, key in server.asked] == [
        ("/same", "key"),
        ("/a", "key"),
        ("/other", "key"),
        ("/a", None),
    ]


def test_a_redirect_into_the_clear_is_refused(server, file):
    server.redirects = {"/a": "http://example.org/a"}
    with pytest.raises(DownloadFailed, match="it redirects to http, which is not encrypted"):
        web.append(f"{server.url}/a", file, 0)
