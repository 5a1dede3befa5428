"""Encodes prompts in which text that looks like a control token is only text."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tokenmill.core.errors import InvalidRequest
from tokenmill.text.spans import Span

if TYPE_CHECKING:
    from tokenizers import AddedToken, Encoding
    from tokenizers import Tokenizer as NativeTokenizer


class OrdinaryEncoder:
    """Encodes spans with a twin of the tokenizer that recognises no control token in text.

    In the twin's input a control span is written as a mark, an added token of the twin alone, with
    the same habits of eating the white space around it. So the text between is encoded exactly as
    it is after a control token, which matters to tokenizers that put a space before a text. The
    twin is made when it is first needed: most prompts hold nothing that needs it.

    Args:
        native: the tokenizer; not changed.
        special: its control tokens by id.
    """

    def __init__(self, native: NativeTokenizer, special: Mapping[int, AddedToken]) -> None:
        self._native = native
        self._ids = {token.content: token_id for token_id, token in special.items()}
        self._contents = {token_id: token.content for token_id, token in special.items()}
        self._special = {token.content: token for token in special.values()}
        self._lock = threading.Lock()
        self._twin: NativeTokenizer | None = None
        # Nobody who writes a prompt can guess the marks, so none can be forged.
        nonce = secrets.token_hex(8)
        self._marks = {
            (lstrip, rstrip): f"\ufdd0{nonce}{lstrip:d}{rstrip:d}\ufdd1"
            for lstrip in (False, True)
            for rstrip in (False, True)
        }
        self._break = f"\ufdd0{nonce}break\ufdd1"

    def encode(self, spans: Sequence[Span]) -> list[int]:
        """Encodes the spans, joined.

        Raises:
            InvalidRequest: an ordinary span holds a control token that the vocabulary cannot spell
                in any other way.
        """
        twin = self._make_twin()
        break_id = twin.token_to_id(self._break)
        mark_ids = {twin.token_to_id(mark) for mark in self._marks.values()}
        controls = [self._ids[span.text] for span in spans if span.is_control]
        text = "".join(self._mark(span.text) if span.is_control else span.text for span in spans)
        while True:
            encoding = twin.encode(text, add_special_tokens=False)
            cut = self._find_forged(text, encoding)
            if cut is None:
                break
            text = text[:cut] + self._break + text[cut:]
        remaining = iter(controls)
        return [
            next(remaining) if token_id in mark_ids else token_id
            for token_id in encoding.ids
            if token_id != break_id
        ]

    def _find_forged(self, text: str, encoding: Encoding) -> int | None:
        """Returns where to cut the first ordinary text that the model itself made a control token.

        A vocabulary that holds control tokens as plain entries (Unigram's often do) can do that.
        """
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            content = self._contents.get(token_id)
            if content is None:
                continue
            # An unknown-token id for unknown characters is no forgery: its text is another.
            found = text.find(content, start, end)
            if found < 0:
                continue
            if len(content) == 1:
                raise InvalidRequest(
                    f"the text holds {content!r}, which is a control token of this model",
                    why="the vocabulary has no other way to write it",
                    fix="Leave it out, or allow control tokens in content",
                )
            return found + len(content) // 2
        return None

    def _mark(self, token: str) -> str:
        special = self._special[token]
        return self._marks[special.lstrip, special.rstrip]

    def _make_twin(self) -> NativeTokenizer:
        with self._lock:
            if self._twin is None:
                from tokenizers import AddedToken
                from tokenizers import Tokenizer as NativeTokenizer

                twin = NativeTokenizer.from_str(self._native.to_str())
                twin.encode_special_tokens = True
                marks = [
                    AddedToken(mark, lstrip=lstrip, rstrip=rstrip, normalized=False)
                    for (lstrip, rstrip), mark in self._marks.items()
                ]
                twin.add_tokens([*marks, AddedToken(self._break, normalized=False)])
                self._twin = twin
            return self._twin
