"""What the command line says on the side."""

import threading

import pytest

from tokenmill.cli import console
from tokenmill.cli.console import patience


class Timer:
    """Stands for `threading.Timer`; ends at once where its time is shorter than the body's."""

    body = 3.0
    cancelled = 0

    def __init__(self, seconds, call, arguments):
        self.seconds, self.call, self.arguments = seconds, call, arguments

    def start(self):
        if self.seconds < self.body:
            self.call(*self.arguments)

    def cancel(self):
        Timer.cancelled += 1


@pytest.fixture
def on_terminal(monkeypatch):
    def on_terminal(is_terminal):
        Timer.cancelled = 0
        monkeypatch.setattr(console.sys.stderr, "isatty", lambda: is_terminal)
        monkeypatch.setattr(threading, "Timer", Timer)

    return on_terminal


def test_what_takes_longer_than_two_seconds_is_said(on_terminal, capsys):
    on_terminal(True)
    with patience("loading"):
        assert capsys.readouterr().err == "loading ...\n"
    assert Timer.cancelled == 1


def test_what_ends_before_is_not(on_terminal, capsys):
    on_terminal(True)
    with patience("loading", 4.0):
        pass
    assert capsys.readouterr().err == ""
    assert Timer.cancelled == 1


def test_an_error_ends_the_wait(on_terminal):
    on_terminal(True)
    with pytest.raises(ValueError, match="broken"), patience("loading", 4.0):
        raise ValueError("broken")
    assert Timer.cancelled == 1


def test_without_a_terminal_nothing_is_said(on_terminal, capsys):
    on_terminal(False)
    with patience("loading"):
        pass
    assert capsys.readouterr().err == ""
