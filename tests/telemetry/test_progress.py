"""The bar for many prompts."""

import sys

import pytest

from tokenmill.telemetry.progress import prompt_progress, wants_progress


@pytest.mark.parametrize(
    ("asked", "num_prompts", "terminal", "shown"),
    [
        (None, 2, True, True),
        (None, 1, True, False),
        (None, 2, False, False),
        (True, 1, False, True),
        (False, 2, True, False),
    ],
)
def test_a_bar_is_for_several_prompts_on_a_terminal_or_as_asked(
    monkeypatch, asked, num_prompts, terminal, shown
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert wants_progress(asked, num_prompts) is shown


def test_the_bar_tells_what_is_done_and_the_speed_on_stderr(monkeypatch, capsys):
    clock = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr("tokenmill.telemetry.progress.time.perf_counter", lambda: next(clock))
    with prompt_progress(3, shown=True) as report:
        report(1, 20)
        report(3, 100)
    output = capsys.readouterr()
    assert output.out == ""
    assert "3/3" in output.err
    assert "25 tokens/s" in output.err


def test_no_bar_writes_nothing(capsys):
    with prompt_progress(3, shown=False) as report:
        report(3, 100)
    assert capsys.readouterr() == ("", "")
