"""`tokenmill run`: a plain conversation on the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from tokenmill.api import LLM
from tokenmill.cli.console import note, print_error
from tokenmill.core.errors import Closed, ContextLengthExceeded, TokenmillError
from tokenmill.core.request import Message

_COMMAND = re.compile(r"/[A-Za-z][\w-]*(?:\s|$)")
"""A word behind a slash, and no path."""

_HELP = "/clear forgets the conversation, /bye or Ctrl-D ends, Ctrl-C stops an answer"


def chat_loop(llm: LLM, options: Mapping[str, Any], system: str | None) -> None:
    """Reads a line, streams the answer, and remembers both, until the input ends."""
    interactive = sys.stdin.isatty()
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    messages = list(opening)
    if interactive:
        note(_HELP)
    while (line := _read_line(interactive)) is not None:
        text = line.strip()
        if text == "/bye":
            return
        if text == "/clear":
            messages = list(opening)
        elif text == "/help":
            note(_HELP)
        elif _COMMAND.match(line):
            note(f"{text!r} is no command: {_HELP}; with a space before it, it is sent")
        elif text:
            messages.append({"role": "user", "content": text})
            answer = _answer(llm, messages, options)
            if answer is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _read_line(interactive: bool) -> str | None:
    try:
        return input(">>> " if interactive else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return ""


def _answer(llm: LLM, messages: list[Message], options: Mapping[str, Any]) -> str | None:
    pieces: list[str] = []
    try:
        if not llm.has_chat_template:
            prompt = "\n".join(str(message["content"]) for message in messages)
            events = llm.stream(prompt, **options)
        else:
            events = llm.stream_chat(messages, **options)
        for event in events:
            print(event.text, end="", flush=True)
            pieces.append(event.text)
    except KeyboardInterrupt:
        note("\n(stopped)")
    except Closed:
        raise
    except TokenmillError as error:
        print_error(error)
        if isinstance(error, ContextLengthExceeded):
            note("/clear makes room")
        return None
    print()
    return "".join(pieces)
