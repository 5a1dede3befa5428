"""What a hub says of its files, and what is remembered of it."""

import json

import pytest

from support import hub_imitation as imitation
from support.hub_imitation import FILES, LARGE, hub_imitation
from tokenmill.package import hub_listing
from tokenmill.package.cache import Cache
from tokenmill.package.hub_listing import Listing, RemoteFile

LISTING = Listing("c" * 40, (RemoteFile("a.json", 2, ""), RemoteFile("b", 3, "0" * 64)))


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setitem(FILES, "v2", {"a.json": b"{}", "weights": b"abc"})
    LARGE.add("weights")
    yield
    LARGE.clear()


@pytest.mark.usefixtures("large")
def test_a_hub_tells_commit_and_files():
    with hub_imitation() as endpoint:
        listing = hub_listing.ask("org/tiny", "v2", endpoint)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert listing == Listing(
        "b" * 40, (RemoteFile("a.json", 2, ""), RemoteFile("weights", 3, digest))
    )
    assert listing.names == ("a.json", "weights")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "digest", ["../../outside", "/outside", "0" * 63, "0" * 64 + "\n", "G" * 64]
)
def test_what_is_no_checksum_never_becomes_a_files_name(monkeypatch, digest):
    wrong = {"oid": digest, "size": 3, "pointerSize": 134}
    monkeypatch.setattr(imitation, "large", lambda data: wrong)
    with hub_imitation() as endpoint:
        files = hub_listing.ask("org/tiny", "v2", endpoint).files
    assert files[1] == RemoteFile("weights", 3, "")


def test_a_listing_is_remembered_under_its_revision_and_its_commit(tmp_path):
    cache = Cache(tmp_path)
    hub_listing.remember(cache, "org/tiny", None, LISTING)
    for revision in (None, "main", LISTING.commit):
        assert hub_listing.recall(cache, "org/tiny", revision) == LISTING
    assert hub_listing.recall(cache, "org/tiny", "v2") is None
    assert hub_listing.recall(cache, "org/other", None) is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        json.dumps({"revisions": [], "commits": {}}),
        json.dumps({"revisions": {"main": "x"}, "commits": {"x": 3}}),
        json.dumps({"revisions": {"main": "x"}, "commits": {"x": [["a"]]}}),
    ],
)
def test_a_damaged_record_is_none(tmp_path, text):
    cache = Cache(tmp_path)
    hub_listing.remember(cache, "org/tiny", None, LISTING)
    (cache.listings / "models--org--tiny.json").write_text(text)
    assert hub_listing.recall(cache, "org/tiny", None) is None
