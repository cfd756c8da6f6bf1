"""IPFIX messages: SONiC's own examples, and any others."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.agent.sonic.ipfix import Field, IpfixError, Template, records, sets, templates


def message(*content):
    body = b"".join(struct.pack(">HH", number, 4 + len(part)) + part for number, part in content)
    return struct.pack(">HHIII", 10, 16 + len(body), 0, 0, 0) + body


def described(template):
    """Return a template as it is in a template set."""
    said = struct.pack(">HH", template.number, len(template.fields))
    for field in template.fields:
        if field.enterprise is None:
            said += struct.pack(">HH", field.element, field.length)
        else:
            said += struct.pack(">HHI", field.element | 0x8000, field.length, field.enterprise)
    return said


def written(template, values):
    """Return a record."""
    data = b""
    for field, value in zip(template.fields, values, strict=True):
        piece = value if isinstance(value, bytes) else value.to_bytes(field.length, "big")
        if field.length == 0xFFFF:
            long = len(piece) > 254
            data += b"\xff" + struct.pack(">H", len(piece)) if long else bytes([len(piece)])
        data += piece
    return data


def test_the_examples_of_the_design_document():
    """SONiC, high-frequency-telemetry-hld.md, 7.2.2 and 7.2.3: ports' errors, three snapshots.

    The enterprise number is as in its picture and in countersyncd: the type of object is above.
    """
    two = Template(256, (Field(325, None, 8), *(Field(n, 1 << 16 | 4, 8) for n in (2, 5))))
    template = message((2, described(two)))
    assert template[16:28] == bytes.fromhex("0002001c0100000301450008")
    assert templates(template) == {256: two}

    ports = [Field(number, 1 << 16 | 4, 8) for number in (1, 2, 3)]
    three = Template(256, (Field(325, None, 8), *ports))
    snapshots = [(10_000, 10, 0, 5), (20_000, 15, 0, 6), (30_000, 20, 0, 8)]
    data = message(*((256, written(three, one)) for one in snapshots))
    assert data[16:20] == bytes.fromhex("01000024")
    assert [values for _, values in records(data, {256: three})] == snapshots


def test_the_vector_of_countersyncds_own_test():
    """sonic-swss, crates/countersyncd/src/actor/ipfix.rs, test_ipfix: two templates, two packets.

    Both extension flags are set in the second field's enterprise number, 0x80038004.
    """
    head = "000a002c 00000000 00000001 00000000 0002001c"
    fields = "01450008 80010008 00010002 80020008 80038004"
    known = templates(bytes.fromhex(f"{head} 01000003 {fields} {head} 01010003 {fields}"))
    assert known[256].fields == (Field(325, None, 8), Field(1, 0x10002, 8), Field(2, 0x80038004, 8))
    assert sorted(known) == [256, 257]

    def packet(last):
        numbers = " ".join(f"{number:016x}" for number in (1, 1, 1))
        more = " ".join(f"{number:016x}" for number in (2, 2, last))
        return f"000a0048 00000000 00000002 00000000 0100001c {numbers} {{:04x}}001c {more}"

    data = bytes.fromhex(packet(3).format(256) + packet(7).format(257))
    found = [(template.number, values) for template, values in records(data, known)]
    assert found == [(256, (1, 1, 1)), (256, (2, 2, 3)), (256, (1, 1, 1)), (257, (2, 2, 7))]


field = st.builds(
    Field,
    st.integers(1, 0x7FFF),
    st.none() | st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 3, 4, 8, 16, 0xFFFF]),
)
template = st.builds(
    Template, st.integers(256, 65535), st.lists(field, min_size=1, max_size=6).map(tuple)
)


@st.composite
def streams(draw):
    """Draw a template, and records of it."""
    chosen = draw(template)
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        row = []
        for one in chosen.fields:
            if one.length == 0xFFFF:
                odd = st.binary(max_size=300).filter(lambda piece: len(piece) not in (1, 2, 4, 8))
                row.append(draw(odd))
            elif one.length in (1, 2, 4, 8):
                row.append(draw(st.integers(0, 256**one.length - 1)))
            else:
                row.append(draw(st.binary(min_size=one.length, max_size=one.length)))
        rows.append(tuple(row))
    return chosen, rows


@pytest.mark.slow
@given(streams(), st.integers(0, 3))
def test_what_was_written_is_read(stream, padding):
    chosen, rows = stream
    known = templates(message((2, described(chosen) + bytes(min(padding, 3)))))
    assert known == {chosen.number: chosen}
    pad = bytes(min(padding, chosen.min_bytes - 1))
    together = message((chosen.number, b"".join(written(chosen, row) for row in rows) + pad))
    assert [values for _, values in records(together, known)] == rows
    apart = b"".join(message((chosen.number, written(chosen, row))) for row in rows)
    assert [values for _, values in records(apart, known)] == rows
    assert list(records(together, {})) == []


@given(streams(), st.data())
def test_bytes_that_are_cut_or_changed_are_an_error_or_other_values_but_no_crash(stream, data):
    chosen, rows = stream
    whole = message((2, described(chosen))) + message(
        (chosen.number, b"".join(written(chosen, row) for row in rows))
    )
    at = data.draw(st.integers(0, len(whole) - 1))
    wrong = bytearray(whole)
    wrong[at] ^= data.draw(st.integers(1, 255))
    for piece in (whole[:at], bytes(wrong)):
        try:
            list(records(piece, templates(piece)))
        except IpfixError:
            continue


@given(st.binary(max_size=200))
def test_any_bytes_end(data):
    for read in (lambda: list(sets(data)), lambda: templates(data)):
        try:
            read()
        except IpfixError:
            continue


def test_a_template_may_be_withdrawn_and_a_set_of_another_kind_is_passed_over():
    gone = message((2, struct.pack(">HH", 256, 0)))
    one = Template(256, (Field(325, None, 8),))
    assert templates(message((2, described(one))) + gone) == {}
    assert templates(message((3, b"\0" * 8), (2, described(one)))) == {256: one}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\0\x0a\0\x10", "4 bytes are too few"),
        (struct.pack(">HHIII", 9, 16, 0, 0, 0), "version 9, 16 bytes"),
        (struct.pack(">HHIII", 10, 20, 0, 0, 0), "version 10, 20 bytes"),
        (struct.pack(">HHIII", 10, 18, 0, 0, 0) + b"\0\2", "header is cut off"),
        (message()[:2] + b"\0\x14" + bytes(12) + b"\0\2\0\3", "set 2 has a length of 3"),
        (message((2, b"\1\0\0\1")), "template 256 is cut off"),
        (message((2, b"\0\5\0\1\1\x45\0\10")), "cannot have number 5"),
        (message((2, b"\1\0\0\1\1\x45\0\0")), "a field without bytes"),
    ],
)
def test_what_is_wrong_is_said(data, what):
    with pytest.raises(IpfixError, match=what):
        templates(data)
