"""The conversation on the terminal, with a model that repeats what it was told."""

import io
from types import SimpleNamespace

import pytest

from tokenmill.cli import main
from tokenmill.cli.chat_loop import chat_loop

HELP = "/clear forgets the conversation, /bye or Ctrl-D ends, Ctrl-C stops an answer"


class Parrot:
    """Answers with the number of messages and the last one's text."""

    has_chat_template = True

    def __init__(self, eos_token_ids=frozenset({2})):
        self.package = SimpleNamespace(
            text=SimpleNamespace(eos_token_ids=eos_token_ids), defaults=None
        )

    def stream_chat(self, messages, **options):
        yield SimpleNamespace(text=f"{len(messages)}:{messages[-1]['content']}")


@pytest.fixture
def talk(monkeypatch, capsys):
    def talk(*lines, llm=None):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        chat_loop(llm or Parrot(), {}, None)
        return capsys.readouterr()

    return talk


def test_a_conversation_is_remembered_until_it_is_cleared(talk):
    said = talk("a", "b", "/clear", "c", "/bye", "d")
    assert said.out.splitlines() == ["1:a", "3:b", "1:c"]


@pytest.mark.parametrize("line", ["/exit", "/clear now", "/Help", "/set-x 1"])
def test_a_command_that_does_not_exist_is_not_sent(talk, line):
    said = talk(line, "a")
    assert said.out.splitlines() == ["1:a"]
    assert said.err == f"{line!r} is no command: {HELP}; with a space before it, it is sent\n"


@pytest.mark.parametrize("line", ["/usr/bin is full", "/", "//", "a /bye", "/1 of it", " /exit"])
def test_text_that_only_begins_with_a_slash_is_sent(talk, line):
    said = talk(line)
    assert said.out.splitlines() == [f"1:{line.strip()}"]
    assert said.err == ""


def test_help_is_the_list_of_commands(talk):
    assert talk("/help").err == f"{HELP}\n"


def test_a_model_without_an_end_of_text_is_warned_of(capsys):
    main._warn_without_end(Parrot())
    assert capsys.readouterr().err == ""
    main._warn_without_end(Parrot(frozenset()))
    assert capsys.readouterr().err == (
        "warning: no file of the model says which token ends a reply: it goes on to --max-tokens, "
        "a --stop text or the end of the context\n"
    )


@pytest.mark.parametrize(("raw", "warned"), [(False, True), (True, False)])
def test_only_a_chat_needs_an_end(capsys, monkeypatch, raw, warned):
    monkeypatch.setattr("tokenmill.api.build_request", lambda *arguments: None)
    main._request(Parrot(frozenset()), "hi", {}, raw=raw, system=None)
    assert ("warning" in capsys.readouterr().err) is warned
