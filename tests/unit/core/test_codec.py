"""Arrays as bytes: what was packed is what is unpacked, and other bytes are refused."""

import json
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from orchestration.core.codec import (
    flattened,
    nested,
    pack,
    pack_observation,
    pack_setup,
    unpack,
    unpack_observation,
    unpack_setup,
)
from orchestration.core.records import Change, Observation, Program, Setup

NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), max_size=8)
DTYPES = st.sampled_from(["<i8", "<i4", "<f8", "|b1", "|u1"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: arrays_of.arrays(
        dtype, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=4)
    )
)
TREES = st.recursive(
    st.dictionaries(NAMES, ARRAYS, max_size=3),
    lambda inner: st.dictionaries(NAMES, ARRAYS | inner, max_size=3),
    max_leaves=6,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def same(one, other):
    """Say whether two arrays, or mappings of them, agree in names, dtypes, shapes and bytes."""
    if isinstance(one, dict) or isinstance(other, dict):
        assert one.keys() == other.keys()
        return all(same(one[name], other[name]) for name in one)
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def without_empty(tree):
    """Mappings without arrays leave no trace in the bytes."""
    kept = {}
    for name, value in tree.items():
        if not isinstance(value, dict):
            kept[name] = value
        elif inner := without_empty(value):
            kept[name] = inner
    return kept


@pytest.mark.slow
@given(tree=TREES, about=JSON)
def test_what_is_packed_is_unpacked(tree, about):
    said, found = unpack(pack(tree, about))
    assert said == about
    assert same(found, without_empty(tree))
    for array in flattened(found).values():
        assert array.flags.writeable, "the receiver's own"
        assert array.flags.owndata or array.base.flags.owndata


@pytest.mark.slow
@given(tree=TREES)
def test_mappings_of_mappings_are_flattened_and_nested_again(tree):
    flat = flattened(tree)
    assert not any(isinstance(value, dict) for value in flat.values())
    assert same(nested(flat), without_empty(tree))


def test_what_is_none_is_left_out():
    assert unpack(pack({"a": None, "b": {"c": None}, "d": np.zeros(2)}))[1].keys() == {"d"}


INTS = arrays_of.arrays("<i8", 3)
FLOATS = arrays_of.arrays("<f8", 3)
KEYS = st.text("abc._", min_size=1, max_size=6)


@pytest.mark.slow
@given(
    t_ns=st.integers(0, 2**62),
    values=st.dictionaries(KEYS, INTS | FLOATS, max_size=4),
    settings=st.dictionaries(KEYS, st.dictionaries(KEYS, INTS | FLOATS, min_size=1, max_size=3)),
    age_ns=INTS,
    taken_ns=st.none() | INTS,
)
def test_an_observation_arrives_as_it_was(t_ns, values, settings, age_ns, taken_ns):
    sent = Observation(t_ns, age_ns, values, settings, taken_ns)
    got = unpack_observation(pack_observation(sent))
    assert type(got.t_ns) is int
    assert got.t_ns == t_ns
    assert same(got.age_ns, age_ns)
    assert same(dict(got.values), values)
    assert same(dict(got.settings), settings)
    assert (got.taken_ns is None) == (taken_ns is None)
    assert taken_ns is None or same(got.taken_ns, taken_ns)


CHANGES = st.builds(
    Change, KEYS, INTS, st.dictionaries(KEYS, INTS | FLOATS, min_size=1, max_size=4)
)
PROGRAMS = st.builds(
    Program, KEYS, INTS, st.binary(max_size=20), st.dictionaries(KEYS, st.integers(), max_size=2)
)


@pytest.mark.slow
@given(changes=st.lists(CHANGES, max_size=3), programs=st.lists(PROGRAMS, max_size=3))
@example(changes=[], programs=[])
def test_a_setup_arrives_as_it_was(changes, programs):
    got = unpack_setup(pack_setup(Setup(tuple(changes), tuple(programs))))
    assert [one.knob for one in got.action] == [one.knob for one in changes]
    for after, before in zip(got.action, changes, strict=True):
        assert same(after.targets, before.targets)
        assert same(dict(after.values), dict(before.values))
    assert len(got.programs) == len(programs)
    for after, before in zip(got.programs, programs, strict=True):
        assert (after.kind, after.code) == (before.kind, before.code)
        assert dict(after.settings) == dict(before.settings)
        assert same(after.targets, before.targets)


GOOD = pack({"a": np.arange(3), "b": {"c": np.zeros((2, 2))}}, {"t": 1})


@given(data=st.data())
def test_bytes_that_are_cut_or_go_on_are_refused(data):
    cut = data.draw(st.integers(0, len(GOOD) - 1))
    for bad in (GOOD[:cut], GOOD + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(ValueError):
            unpack(bad)


def with_header(header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text


def with_shapes(*shapes):
    return with_header([None, list(shapes)])


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\0\0\0",
        with_header(b"no JSON"),
        with_header(b"\xff\xfe"),
        with_header(7),
        with_header([]),
        with_header([1, 2]),
        with_header({"a": 1, "b": 2}),
        with_shapes(["a", "<i8"]),
        with_shapes(["a", "no dtype", [1]]) + bytes(8),
        with_shapes(["a", "|O", [1]]) + bytes(8),
        with_shapes(["a", "=i8", [1]]) + bytes(8),
        with_shapes(["a", "<i8", ["1"]]) + bytes(8),
        with_shapes(["a", "<i8", [-1]]) + bytes(8),
        with_shapes(["a", "<i8", [-2]]) + bytes(8),
        with_shapes([1, "<i8", [1]]) + bytes(8),
        with_shapes(["a", "<i8", [1]], ["a/b", "<i8", [1]]) + bytes(16),
        with_shapes(["a/b", "<i8", [1]], ["a", "<i8", [1]]) + bytes(16),
        with_shapes(["a", "<i8", [2**70]]) + bytes(8),
        with_shapes(["a", "<i8", None]) + bytes(8),
    ],
)
def test_malformed_bytes_are_refused(bad):
    with pytest.raises(ValueError):
        unpack(bad)


@given(noise=st.binary(max_size=60))
def test_noise_is_refused(noise):
    with pytest.raises(ValueError):
        unpack(noise)


@given(data=st.data())
def test_a_byte_that_differs_is_refused_or_gives_other_arrays(data):
    at = data.draw(st.integers(0, len(GOOD) - 1))
    bad = bytearray(GOOD)
    bad[at] ^= data.draw(st.integers(1, 255))
    try:
        said, found = unpack(bytes(bad))
    except ValueError:
        return
    _, good = unpack(GOOD)
    assert (
        said != {"t": 1}
        or flattened(found).keys() != flattened(good).keys()
        or not same(found, good)
    )


@pytest.mark.parametrize("read", [unpack_observation, unpack_setup])
@pytest.mark.parametrize("about", [None, 5, "x", [], {}, {"knobs": ["ecn"], "programs": []}])
def test_other_arrays_are_no_observation_and_no_setup(read, about):
    with pytest.raises(ValueError):
        read(pack({"other": np.zeros(2)}, about))
