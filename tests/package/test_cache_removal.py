import os

import pytest

from support.hub_imitation import FILES, hub_imitation
from tokenmill.core.errors import Busy, InvalidOption, ModelNotFound, TokenmillError
from tokenmill.package import hub
from tokenmill.package.cache import Cache
from tokenmill.package.cache_removal import remove
from tokenmill.package.identity import content_identity


@pytest.fixture
def cache(tmp_path):
    """A cache with two things called tiny, an import, a repository, and rewritten graphs."""
    cache = Cache(tmp_path / "cache")
    for path in (
        "downloads/tiny/tiny.gguf",
        "partials/tiny/tiny.gguf",
        "imports/tiny-keep-1/model.onnx",
        "hub/models--org--tiny/blobs/1",
        "hub/.locks/models--org--tiny/1.lock",
        "hub/models--org--other/blobs/1",
        "graphs/a.graph",
    ):
        file = cache.root / path
        file.parent.mkdir(parents=True)
        file.write_bytes(b"12345")
    cache.listings.mkdir()
    (cache.listings / "models--org--tiny.json").write_text("{}")
    return cache


def names(cache):
    return [(entry.kind, entry.name) for entry in cache.list()]


def test_everything_of_a_name_is_removed_and_told(cache):
    removed = remove(cache, ["tiny"])
    assert [(entry.kind, entry.name, entry.size) for entry in removed] == [
        ("download", "tiny", 5),
        ("partial", "tiny", 5),
    ]
    assert names(cache) == [("import", "tiny-keep-1"), ("hub", "org/other"), ("hub", "org/tiny")]
    assert list(cache.downloads.iterdir()) == []


def test_a_repository_is_removed_with_what_is_known_of_it(cache):
    remove(cache, ["org/tiny"])
    assert ("hub", "org/tiny") not in names(cache)
    left = {path.name for path in cache.root.rglob("*")}
    assert left.isdisjoint({"models--org--tiny", "models--org--tiny.json"})
    assert (cache.hub / "models--org--other" / "blobs" / "1").exists()


def test_a_repository_can_be_fetched_again(tmp_path):
    cache = Cache(tmp_path)
    with hub_imitation() as endpoint:
        for _ in range(2):
            directory = hub.fetch("org/tiny", cache, endpoint=endpoint)
            assert (directory / "model.onnx").read_bytes() == FILES["main"]["model.onnx"]
            assert [entry.name for entry in remove(cache, ["org/tiny"])] == ["org/tiny"]
            assert not directory.exists()


def test_all_is_all(cache):
    removed = remove(cache, [], everything=True)
    assert [(one.kind, one.name, one.size) for one in removed] == [
        ("download", "tiny", 5),
        ("import", "tiny-keep-1", 5),
        ("hub", "org/other", 5),
        ("hub", "org/tiny", 5),
        ("partial", "tiny", 5),
        ("graphs", "graphs", 5),
    ]
    assert names(cache) == []
    assert not cache.graphs.exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tinny", "Did you mean 'tiny'"),
        ("../cache", "It has org/other, org/tiny, tiny"),
        ("downloads", "It has org/"),
        ("", "It has org/"),
        ("models--org--tiny", "It has|Did you mean"),
    ],
)
def test_an_unknown_name_removes_nothing(cache, name, hint):
    before = names(cache)
    with pytest.raises(ModelNotFound, match=hint):
        remove(cache, ["tiny", name])
    assert names(cache) == before


def test_an_empty_cache_says_so(tmp_path):
    with pytest.raises(ModelNotFound, match=r"the cache has no 'x'\. It is empty"):
        remove(Cache(tmp_path), ["x"])


def test_names_or_everything(cache):
    for arguments in (([], False), (["tiny"], True)):
        with pytest.raises(InvalidOption, match="rm takes names, or --all"):
            remove(cache, arguments[0], everything=arguments[1])


def test_what_another_process_works_on_is_not_removed(cache):
    with cache.lock("models--org--tiny"), pytest.raises(Busy, match="models--org--tiny is in use"):
        remove(cache, ["org/tiny"])
    assert ("hub", "org/tiny") in names(cache)


def test_what_is_gone_when_its_turn_comes_is_no_error(cache, monkeypatch):
    entries = cache.list()
    cache.partial("tiny").rename(cache.root / "elsewhere")
    monkeypatch.setattr(Cache, "list", lambda self: entries)
    assert [entry.kind for entry in remove(cache, ["tiny"])] == ["download"]
    assert list(cache.partials.iterdir()) == []


def test_a_file_system_that_refuses_is_a_typed_error(cache, monkeypatch):
    def refuse(path, aside):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("tokenmill.package.cache_removal.os.replace", refuse)
        with pytest.raises(TokenmillError, match="tiny-keep-1 could not be removed: Permission"):
            remove(cache, ["tiny-keep-1"])
    assert [path.name for path in cache.imports.iterdir()] == ["tiny-keep-1"]


def test_links_are_removed_and_not_followed(cache, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    os.symlink(outside, cache.downloads / "linked")
    os.symlink(outside, cache.imports / "tiny-keep-1" / "link")
    assert ("download", "linked") not in names(cache)
    remove(cache, ["tiny-keep-1"])
    assert (outside / "file").read_text() == "mine"


def test_a_removal_that_is_interrupted_is_finished_by_cleaning(cache, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tokenmill.package.cache_removal.shutil.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove(cache, ["tiny-keep-1"])
    assert ("import", "tiny-keep-1") not in names(cache)
    assert len(list(cache.imports.iterdir())) == 1
    cache.clean()
    assert list(cache.imports.iterdir()) == []


def imported(cache, file, content):
    """Puts a GGUF file into the cache and imports it twice; returns the imports' names."""
    path = cache.root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    names = [
        f"{path.stem}-{precision}-{content_identity(path)[:12]}-1" for precision in ("keep", "fp32")
    ]
    for name in names:
        (cache.imports / name).mkdir()
    return names


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("small", "downloads/small/model.Q4.gguf"),
        ("org/other", "hub/models--org--other/snapshots/1/model.Q4.gguf"),
    ],
)
def test_what_was_imported_from_a_files_content_goes_with_it(cache, name, file):
    made = imported(cache, file, b"one")
    others = imported(cache, "downloads/elsewhere/model.Q4.gguf", b"two")
    others += imported(cache, "downloads/elsewhere/model.gguf", b"one")
    removed = [(entry.kind, entry.name) for entry in remove(cache, [name])]
    assert removed[1:] == [("import", one) for one in sorted(made)]
    assert {path.name for path in cache.imports.iterdir()} == {*others, "tiny-keep-1"}


def test_an_import_that_is_named_beside_its_file_is_removed_once(cache):
    made = imported(cache, "downloads/small/model.gguf", b"one")
    removed = [entry.name for entry in remove(cache, ["small", made[0]])]
    assert sorted(removed) == sorted(["small", *made])


def test_a_file_goes_without_its_import_where_that_alone_is_named(cache):
    made = imported(cache, "downloads/small/model.gguf", b"one")
    assert [entry.name for entry in remove(cache, [made[0]])] == [made[0]]
    assert (cache.downloads / "small" / "model.gguf").exists()
