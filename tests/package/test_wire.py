import pytest

from tokenmill.package.wire import BYTES, FIXED32, FIXED64, VARINT, Field, Wire, WireError, signed


def fields(data, **options):
    return list(Wire(data, **options).fields(0, len(data)))


def test_each_wire_type_gives_its_value_or_its_place():
    data = b"\x08\x96\x01\x12\x02hi\x1d\0\0\0\0\x21\0\0\0\0\0\0\0\0"
    assert fields(data) == [
        Field(1, VARINT, 150, 3),
        Field(2, BYTES, 5, 7),
        Field(3, FIXED32, 8, 12),
        Field(4, FIXED64, 13, 21),
    ]


def test_a_field_number_past_fifteen_takes_two_bytes():
    assert fields(b"\xa0\x01\x07") == [Field(20, VARINT, 7, 3)]


@pytest.mark.parametrize(
    ("data", "offset", "why"),
    [
        (b"\x00", 0, "number 0"),
        (b"\x08", 0, "cut off"),
        (b"\x08\x80", 1, "cut off or too long"),
        (b"\x08" + b"\xff" * 11, 1, "cut off or too long"),
        (b"\x12\x05hi", 0, "says 5 bytes and 2 are left"),
        (b"\x08\x01\x1d\0\0", 2, "says 4 bytes and 2 are left"),
        (b"\x0b", 0, "unknown wire type 3"),
        (b"\x80", 0, "cut off or too long"),
    ],
)
def test_damage_is_named_with_its_offset(data, offset, why):
    with pytest.raises(WireError) as caught:
        fields(data)
    assert caught.value.offset == offset
    assert why in caught.value.why


def test_a_message_does_not_read_past_its_own_end():
    data = b"\x0a\x02\x12\x05hello"
    outer = next(Wire(data).fields(0, len(data)))
    with pytest.raises(WireError, match="says 5 bytes and 0 are left"):
        list(Wire(data).fields(outer.value, outer.stop))


def test_the_number_of_fields_is_bounded():
    with pytest.raises(WireError, match="more fields than any graph"):
        fields(b"\x08\x01" * 11, max_fields=10)


def test_packed_and_single_numbers_read_alike():
    wire = Wire(b"\x0a\x03\x01\xac\x02\x08\x05")
    packed, single = wire.fields(0, 7)
    assert list(wire.varints(packed)) == [1, 300]
    assert list(wire.varints(single)) == [5]


def test_text_that_is_not_utf8_is_named_with_its_offset():
    wire = Wire(b"\x0a\x02a\xff")
    with pytest.raises(WireError, match="not UTF-8") as caught:
        wire.text(next(wire.fields(0, 4)))
    assert caught.value.offset == 3


def test_a_field_of_another_wire_type_is_refused():
    with pytest.raises(WireError, match="wire type 0, not 2"):
        Field(3, VARINT, 1, 2).require(BYTES)


def test_signed_numbers():
    assert [signed(2**64 - 1), signed(2**63), signed(7)] == [-1, -(2**63), 7]
