import pytest

from tokenmill.package.gguf import atomic_directory
from tokenmill.package.gguf.atomic_directory import replaced_directory


def fill(directory, text):
    (directory / "file").write_text(text)


def test_a_new_directory_appears_when_the_block_is_left(tmp_path):
    with replaced_directory(tmp_path / "deep" / "out") as directory:
        fill(directory, "new")
        assert not (tmp_path / "deep" / "out").exists()
    assert (tmp_path / "deep" / "out" / "file").read_text() == "new"


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_old_directory_is_replaced_whole(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(atomic_directory, "_exchange", lambda left, right: False)
    out = tmp_path / "out"
    out.mkdir()
    fill(out, "old")
    (out / "only in the old one").touch()
    with replaced_directory(out) as directory:
        fill(directory, "new")
        assert (out / "file").read_text() == "old"
    assert [path.name for path in out.iterdir()] == ["file"]
    assert (out / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]


def test_a_failure_leaves_the_old_directory_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    fill(out, "old")

    def fail_half_way():
        with replaced_directory(out) as directory:
            fill(directory, "half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert (out / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]
