"""The protobuf wire format, read in place: field by field, skipping what nobody asks for.

Source: protobuf.dev/programming-guides/encoding. Enough for ONNX files, whose weights may fill
gigabytes that must not be touched, and safe on any bytes: every length is checked against the
message that holds it, and the number of fields of one file is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types. 3 and 4, the groups of old, do not occur in ONNX."""

_WIDTHS = {FIXED64: 8, FIXED32: 4}
_MAX_FIELDS = 5_000_000


class WireError(Exception):
    """Bytes that are not a protobuf message.

    Args:
        offset: where, in bytes from the start of the file.
        why: what is wrong there.
    """

    def __init__(self, offset: int, why: str) -> None:
        self.offset, self.why = offset, why
        super().__init__(offset, why)


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        number: as the message's definition counts.
        wire_type: VARINT, FIXED64, BYTES or FIXED32.
        value: of a VARINT, unsigned; otherwise where the field's bytes start.
        stop: where the field's bytes stop.
    """

    number: int
    wire_type: int
    value: int
    stop: int

    def require(self, wire_type: int) -> Field:
        """Returns the field itself if it has the wire type that its definition asks for."""
        if self.wire_type != wire_type:
            why = f"field {self.number} has wire type {self.wire_type}, not {wire_type}"
            raise WireError(self.stop, why)
        return self


class Wire:
    """A buffer with a budget of fields.

    Args:
        data: the file's bytes.
        max_fields: more fields than this raise `WireError`; real graphs have far fewer, and the
            bound keeps hostile files from taking minutes.
    """

    def __init__(self, data: bytes | mmap, max_fields: int = _MAX_FIELDS) -> None:
        self.data = data
        self._left = max_fields

    def fields(self, start: int, stop: int) -> Iterator[Field]:
        """Yields the fields of the message that stands in bytes `start` to `stop`.

        Raises:
            WireError: a field that is cut off, or that no definition could have.
        """
        data, position = self.data, start
        while position < stop:
            at = position
            self._left -= 1
            if self._left < 0:
                raise WireError(at, "it has more fields than any graph")
            tag = data[position]
            position += 1
            if tag >= 0x80:
                tag, position = self._varint(at, stop)
            number, wire_type = tag >> 3, tag & 7
            if number == 0:
                raise WireError(at, "a field has the number 0")
            if wire_type in (VARINT, BYTES):
                if position >= stop:
                    raise WireError(at, f"field {number} is cut off")
                value = data[position]
                position += 1
                if value >= 0x80:
                    value, position = self._varint(position - 1, stop)
                if wire_type == VARINT:
                    yield Field(number, VARINT, value, position)
                    continue
                width = value
            elif wire_type in _WIDTHS:
                width = _WIDTHS[wire_type]
            else:
                raise WireError(at, f"field {number} has the unknown wire type {wire_type}")
            if width > stop - position:
                why = f"field {number} says {width} bytes and {stop - position} are left"
                raise WireError(at, why)
            yield Field(number, wire_type, position, position + width)
            position += width

    def varints(self, field: Field) -> Iterator[int]:
        """Yields the unsigned numbers of a repeated field, packed or not."""
        if field.wire_type == VARINT:
            yield field.value
            return
        position, stop = field.require(BYTES).value, field.stop
        while position < stop:
            self._left -= 1
            if self._left < 0:
                raise WireError(position, "it has more numbers than any graph")
            value, position = self._varint(position, stop)
            yield value

    def text(self, field: Field) -> str:
        """Returns a string field."""
        field.require(BYTES)
        try:
            return str(self.data[field.value : field.stop], "utf-8")
        except UnicodeDecodeError as error:
            where = field.value + error.start
            raise WireError(where, f"field {field.number} is not UTF-8") from None

    def _varint(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the number at `start` and the position behind it."""
        value, shift = 0, 0
        for position in range(start, min(stop, start + 10)):
            byte = self.data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), position + 1
            shift += 7
        raise WireError(start, "a number is cut off or too long")


def signed(value: int) -> int:
    """Returns the int64 that an unsigned varint stands for."""
    return value - 2**64 if value >= 2**63 else value
