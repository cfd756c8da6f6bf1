"""Testbeds with replaced fields: their names say all, and load what a file `like` another has."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory import files
from inventory.files import load_testbed, load_variant
from inventory.strictyaml import parse
from inventory.variant import (
    brief_name,
    grouped,
    own_name,
    relative_to,
    seen_from,
    short_name,
    split_name,
    variant_name,
)
from orchestration.core.errors import InputError

SWITCH = "graphcc {switch: {alpha: 1/8, buffer: 12MB, pfc: [3]}}"


def test_only_the_named_fields_are_replaced():
    base, smaller = load_testbed("graphcc"), load_testbed("graphcc {buffer: 8MB}")
    assert {port.buffer_bytes for port in smaller.switch_ports} == {8_000_000}
    assert smaller.links == base.links
    assert smaller.mtu_bytes == base.mtu_bytes
    assert smaller.description == "graphcc with buffer: 8MB"
    assert smaller.name == "graphcc-buffer-8mb"
    assert load_testbed("graphcc {buffer: 8MB, name: mine}").name == "mine"


def test_a_mapping_replaces_only_the_fields_that_it_has(tmp_path):
    faster = load_testbed("graphcc {uplink: {rate: 200Gbps}}")
    delays = {link.delay_ns for link in faster.links}
    assert {link.rate_bps for link in faster.links} == {25 * 10**9, 200 * 10**9}
    assert delays == {link.delay_ns for link in load_testbed("graphcc").links}
    (tmp_path / "pfc.yml").write_text(
        "like: graphcc\nname: pfc\nswitch: {buffer: 12MB, alpha: 1/8, pfc: [3]}\n"
        "slow_links: {share: 0.25, factor: 0.5}\n"
    )
    half = load_testbed(f"{tmp_path}/pfc.yml {{switch: {{buffer: 6MB}}, slow_links: none}}")
    assert half.switch.buffer_bytes == 6_000_000
    assert half.switch.alpha == (0.125,)
    assert half.switch.lossless == (0,)
    assert {link.rate_bps for link in half.links} == {25 * 10**9, 100 * 10**9}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("graphcc {bufer: 8MB}", "graphcc {bufer: 8MB}:1: unknown field 'bufer'"),
        ("graphcc {buffer: 8}", "graphcc {buffer: 8}:1: 8 is not a size with a unit"),
        ("graphcc {switch: none}", "missing field 'buffer'"),
        ("nothing {buffer: 8MB}", "unknown testbed 'nothing'"),
        ("no/such.yml {buffer: 8MB}", "no/such.yml: no such file"),
        ("graphcc {buffer: [}", "not valid YAML"),
    ],
)
def test_wrong_names_are_refused(name, message):
    with pytest.raises(InputError) as caught:
        load_testbed(name)
    assert message in str(caught.value)


VALUES = st.recursive(
    st.booleans()
    | st.integers(-5, 10**12)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
    | st.sampled_from(["8MB", "1/8", "none", "null", "on", "h1", "25Gbps", "10.0.0.1", "1e3"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["buffer", "alpha", "pfc", "rate"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(fields=st.dictionaries(st.sampled_from(["buffer", "switch", "mtu", "uplink"]), VALUES))
def test_a_name_has_the_base_and_all_fields(fields):
    name = variant_name({"like": "racks/a b.yml", **fields})
    base, text = split_name(name)
    assert base == "racks/a b.yml"
    assert (parse(text, "name").data if text else {}) == fields
    assert variant_name({**dict(reversed(fields.items())), "like": base}) == name


def test_a_variant_of_a_file_is_that_of_its_name(tmp_path):
    (tmp_path / "own.yml").write_text("like: rlcc-7\nname: own\n")
    document = parse("like: own.yml\nbuffer: 1MB\n", "campaign.yml")
    made = load_variant(document, tmp_path)
    assert made == load_testbed(f"{tmp_path}/own.yml {{buffer: 1MB}}")
    assert made.name == "own-buffer-1mb"
    whole = tmp_path / "whole.yml"
    whole.write_text(files.testbed_text(f"{tmp_path}/own.yml {{buffer: 1MB}}"))
    assert load_testbed(str(whole)) == made


def test_paths_are_those_of_the_base_alone():
    assert relative_to("labs", SWITCH) == SWITCH
    assert relative_to("labs", "own.yml {mtu: 9000B}") == "labs/own.yml {mtu: 9000B}"
    assert seen_from("labs", "labs/own.yml {mtu: 9000B}") == "own.yml {mtu: 9000B}"
    assert short_name(SWITCH) == SWITCH
    assert short_name("labs/own.yml {mtu: 9000B}") == "own.yml {mtu: 9000B}"
    assert grouped([SWITCH, "graphcc", "acc"]) == ["acc", "graphcc (2 variants)"]


def test_a_brief_name_leaves_out_what_is_inside_of_fields():
    switch = "graphcc {hosts_per_leaf: 8, switch: {alpha: 1/8, buffer: 32MB, pfc: [3]}}"
    assert brief_name(switch) == "graphcc {hosts_per_leaf: 8, switch: …}"
    assert brief_name("labs/own.yml") == "labs/own.yml"


def test_own_names_are_short_and_differ():
    long = [own_name("graphcc", json.dumps({"source": f"{'x' * 90}{n}"})) for n in (1, 2)]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 63
