"""The steps between vocabulary pieces and text, each able to work while the pieces still arrive.

A tokenizer's decoder is a chain over the list of all pieces. Each stage here is one link of that
chain, rewritten so that it takes one piece at a time and gives out what no later piece can change.
What the links do is defined by the `tokenizers` library (`tokenizers/src/decoders`, and `Replace`,
`ByteLevel` and `Metaspace` beside it); `flush` after any number of pushes completes to the same.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>\Z")


def byte_of(piece: str) -> int | None:
    """The byte that a fallback piece such as "<0x0A>" stands for, or None for any other piece."""
    match = _BYTE_TOKEN.match(piece) if piece.startswith("<0x") else None
    return int(match[1], 16) if match else None


def _byte_alphabet() -> dict[str, int]:
    # GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes count up from U+0100.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """The bytes that a byte-level piece stands for.

    A piece with one character outside the alphabet (an added token with a space) is its own UTF-8.
    """
    try:
        return bytes([_ALPHABET[character] for character in piece])
    except KeyError:
        return piece.encode()


class Stage:
    """One link. `push` and `flush` return the pieces for the next link, in order, maybe none."""

    @property
    def holding(self) -> bool:
        """Whether `flush` would return any text."""
        return False

    def push(self, piece: str) -> Sequence[str]:
        """Takes the next piece."""
        raise NotImplementedError

    def flush(self) -> Sequence[str]:
        """Gives out what is held back, since no piece follows."""
        return ()


class EachPiece(Stage):
    """Applies a function to each piece: links without memory."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function

    def push(self, piece: str) -> Sequence[str]:
        """See `Stage`."""
        return (self._function(piece),)


class FirstPiece(Stage):
    """Applies one function to the first piece and another to all that follow."""

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._function, self._later = first, later

    def push(self, piece: str) -> Sequence[str]:
        """See `Stage`."""
        text = self._function(piece)
        self._function = self._later
        return (text,)


class ByteFallback(Stage):
    """Joins byte pieces to characters: the whole run if it is UTF-8, else one U+FFFD per byte.

    One bad byte spoils its whole run, so a run is held back until a piece that is not a byte
    arrives.
    """

    def __init__(self) -> None:
        self._run = b""

    @property
    def holding(self) -> bool:
        """See `Stage`."""
        return bool(self._run)

    def push(self, piece: str) -> Sequence[str]:
        """See `Stage`."""
        byte = byte_of(piece)
        if byte is not None:
            self._run += bytes((byte,))
            return ()
        if not self._run:
            return (piece,)
        return (*self.flush(), piece)

    def flush(self) -> Sequence[str]:
        """See `Stage`."""
        run, self._run = self._run, b""
        if not run:
            return ()
        try:
            return (run.decode(),)
        except UnicodeDecodeError:
            return ("\ufffd",) * len(run)


class ByteLevel(Stage):
    """Bytes to characters, each maximal ill-formed part becoming one U+FFFD (Unicode, D93b)."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __copy__(self) -> ByteLevel:
        copied = ByteLevel()
        copied._decoder.setstate(self._decoder.getstate())
        return copied

    @property
    def holding(self) -> bool:
        """See `Stage`."""
        return bool(self._decoder.getstate()[0])

    def push(self, piece: str) -> Sequence[str]:
        """See `Stage`."""
        return (self._decoder.decode(byte_level_bytes(piece)),)

    def flush(self) -> Sequence[str]:
        """See `Stage`."""
        return (self._decoder.decode(b"", True),)


class WordEnd(Stage):
    """Turns end-of-word marks into spaces, except in the last piece, where they vanish."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._held = ""

    @property
    def holding(self) -> bool:
        """See `Stage`."""
        return bool(self._held.replace(self._suffix, ""))

    def push(self, piece: str) -> Sequence[str]:
        """See `Stage`."""
        released = self._held.replace(self._suffix, " ")
        # Only from the mark on does the text depend on whether another piece follows.
        mark = piece.find(self._suffix) if self._suffix else 0
        cut = len(piece) if mark < 0 else mark
        self._held = piece[cut:]
        return (released + piece[:cut],)

    def flush(self) -> Sequence[str]:
        """See `Stage`."""
        held, self._held = self._held, ""
        return (held.replace(self._suffix, ""),)


class Deduplicate(Stage):
    """Drops a piece that equals the one before it, then applies a function; CTC's first half."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function
        self._last: str | None = None

    def push(self, piece: str) -> Sequence[str]:
        """See `Stage`."""
        if piece == self._last:
            return ()
        self._last = piece
        text = self._function(piece)
        return (text,) if text else ()


class StripStart(Stage):
    """Drops up to `count` leading characters equal to `content` from the whole output."""

    def __init__(self, content: str, count: int) -> None:
        self._content, self._left = content, count

    def push(self, piece: str) -> Sequence[str]:
        """See `Stage`."""
        start = 0
        while self._left and start < len(piece):
            if piece[start] != self._content:
                self._left = 0
                break
            self._left -= 1
            start += 1
        return (piece[start:],)
