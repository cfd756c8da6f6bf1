import numpy as np
import pytest

from orchestration.core.errors import InputError
from orchestration.exchange.csv_flows import import_csv
from orchestration.exchange.imported import write_imported
from orchestration.results.reader import read_trial

MAPPING = """\
testbed: graphcc
delimiter: semicolon
columns:
  src: from
  dst: to
  bytes: {column: size, unit: KiB}
  start: {column: t0, unit: us}
  fct: {column: took, unit: ms}
  class: what
base: 1s
"""
TABLE = """\
to;from;size;t0;took;what;more
h2;h1;1.5;1000000.25;0.5;web;x
"h3";h1;20;1000000;;web;"a; b"
h1;h9;1;1000100.0004;12.25;rpc;
"""
ONE_SWITCH = MAPPING.replace("testbed: graphcc", "one_big_switch: {rate: 25Gbps, delay: 1us}")


@pytest.fixture
def imported(tmp_path):
    def run(table=TABLE, mapping=MAPPING):
        path = tmp_path / "flows.csv"
        path.write_bytes(table if isinstance(table, bytes) else table.encode())
        (tmp_path / "map.yml").write_text(mapping)
        found = import_csv(path, tmp_path / "map.yml")
        return read_trial(write_imported(found, tmp_path / "runs", label="mine").folder)

    return run


def test_columns_units_and_order_are_those_of_the_mapping(imported):
    result = imported()
    schedule, flows = result.table("schedule"), result.table("flows")
    assert schedule["start_ns"].tolist() == [0, 250, 100_000]
    assert schedule["src"].tolist() == ["h1", "h1", "h9"]
    assert schedule["bytes"].tolist() == [20_480, 1536, 1024]
    assert schedule["class"].tolist() == ["web", "web", "rpc"]
    assert flows["fct_ns"].tolist() == [-1, 500_000, 12_250_000]
    assert flows["status"].tolist() == ["unfinished", "done", "done"]
    assert result.testbed.name == "graphcc"
    assert (flows["retransmits"] == -1).all()


def test_seconds_since_1970_keep_their_nanoseconds(imported):
    table = "from;to;size;t0;took;what\nh1;h2;1;1700000000.123456789;0.000000007;w\n"
    mapping = MAPPING.replace("unit: us", "unit: s").replace("unit: ms", "unit: s")
    mapping = mapping.replace("base: 1s", "base: 1700000000s")
    result = imported(table, mapping)
    assert result.table("schedule")["start_ns"][0] == 123_456_789
    assert result.table("flows")["fct_ns"][0] == 7


def test_hosts_without_a_fabric_are_on_one_switch_by_their_own_order(imported):
    table = TABLE.replace("h1", "10.0.0.1").replace("h2", "10.0.0.10").replace("h3", "10.0.0.2")
    result = imported(table, ONE_SWITCH)
    assert result.testbed.hosts == ("h1", "h2", "h3", "h4")
    named = result.facts["hosts_named"]
    assert [named[a] for a in ("10.0.0.1", "10.0.0.2", "10.0.0.10", "h9")] == list(
        result.testbed.hosts
    )
    assert any("big switch" in item for item in result.facts["imported"]["missing"])


def test_statuses_are_translated(imported):
    mapping = MAPPING.replace("  class: what\n", "  status: what\n")
    mapping += "statuses: {web: done, rpc: failed}\n"
    table = TABLE.replace(";;web", ";1;web").replace("12.25;rpc", ";rpc")
    assert imported(table, mapping).table("flows")["status"].tolist() == ["done", "done", "failed"]
    with pytest.raises(
        InputError, match=r"flows.csv:4: status is 'rpc', which does not fit its end"
    ):
        imported(TABLE.replace(";;web", ";1;web"), mapping)


def test_ends_in_place_of_durations(imported):
    mapping = MAPPING.replace("fct: {column: took, unit: ms}", "end: {column: took, unit: s}")
    table = TABLE.replace(";0.5;", ";1.0001;").replace("12.25", "1.0002")
    assert imported(table, mapping).table("flows")["end_ns"].tolist() == [-1, 100_000, 200_000]
    with pytest.raises(InputError, match=r"flows\.csv:2: the flow ends before it starts"):
        imported(TABLE, mapping)


def test_planned_flows_are_a_schedule_without_results(imported):
    result = imported(mapping=MAPPING.replace("  fct: {column: took, unit: ms}\n", ""))
    assert {reason.code for reason in result.stamp.reasons} >= {"no-results"}
    assert not result.stamp.valid


BAD = {
    "host": (TABLE.replace("h9", "h99"), MAPPING, "flows.csv:4: .* has no host 'h99'"),
    "unit-in-cell": (TABLE.replace("12.25", "12.25ms"), MAPPING, "flows.csv:4: fct is '12.25ms'"),
    "nan": (TABLE.replace("12.25", "nan"), MAPPING, "flows.csv:4: fct is 'nan'"),
    "zero": (TABLE.replace("12.25", "0"), MAPPING, "flows.csv:4: fct is '0'"),
    "early": (TABLE.replace("1000100.0004", "5"), MAPPING, "flows.csv:4: start is '5'"),
    "empty-flow": (TABLE.replace(";1;", ";0;"), MAPPING, "flows.csv:4: bytes is '0'"),
    "short": (TABLE.replace(";rpc;", ";rpc"), MAPPING, "flows.csv:4: has 6 cells, the header 7"),
    "torn": (TABLE[:-3], MAPPING, "flows.csv:4: the last line has no line break"),
    "empty": ("", MAPPING, "flows.csv: is empty"),
    "header-only": (TABLE.split("\n")[0] + "\n", MAPPING, "has no flows below its header"),
    "column": (TABLE.replace("took", "fct"), MAPPING, "flows.csv:1: has no column 'took'"),
    "binary": (b"\x89PNG\r\n\xff\xfe\n", MAPPING, "flows.csv: is not UTF-8 text"),
    "twice": (
        TABLE + TABLE.split("\n")[1] + "\n",
        MAPPING,
        "flows.csv:5: the row is there twice: in",
    ),
    "itself": (TABLE.replace("h1;h9", "h9;h9"), MAPPING, "flows.csv:4: .* to itself"),
    "unit": (
        TABLE,
        MAPPING.replace("unit: us", "unit: usec"),
        "map.yml:7: 'unit' is 'usec'",
    ),
    "size-unit": (TABLE, MAPPING.replace("KiB", "kb"), "map.yml:6: 'unit' is 'kb'"),
    "no-unit": (TABLE, MAPPING.replace(", unit: KiB", ""), "map.yml:6: missing field 'unit'"),
    "no-fabric": (TABLE, MAPPING.replace("testbed: graphcc\n", ""), "names no fabric, or two"),
    "field": (TABLE, MAPPING + "colour: red\n", "map.yml:11: unknown field 'colour'"),
    "mapped-host": (TABLE, MAPPING + "hosts: {h9: h77}\n", "map.yml: hosts: h9 is 'h77'"),
    "testbed": (TABLE, MAPPING.replace("graphcc", "grafcc"), "unknown testbed 'grafcc'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_line_and_leaves_nothing(imported, tmp_path, name):
    table, mapping, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        imported(table, mapping)
    assert all(problem.remedy for problem in caught.value.problems)
    assert not (tmp_path / "runs").exists()


def test_two_equal_flows_are_distinguished_by_their_numbers(imported):
    numbered = TABLE.replace("more\n", "more\n").replace("x\n", "7\n").replace('"a; b"', "5")
    numbered = numbered.replace("rpc;\n", "rpc;6\n")
    mapping = MAPPING.replace("  class: what\n", "  class: what\n  flow_id: more\n")
    twice = numbered + numbered.split("\n")[1].replace(";7", ";8") + "\n"
    assert len(imported(twice, mapping).table("flows")["flow_id"]) == 4
    with pytest.raises(InputError, match="the flow_id is there twice: in line 2, too"):
        imported(numbered + numbered.split("\n")[1] + "\n", mapping)


def test_a_block_of_rows_ends_nowhere(imported, monkeypatch):
    from orchestration.core import csv_columns

    whole = imported().table("schedule")
    monkeypatch.setattr(csv_columns, "_BLOCK_ROWS", 2)
    with pytest.raises(InputError, match=r"flows\.csv:4: has 6 cells"):
        imported(TABLE.replace(";rpc;", ";rpc"))
    with pytest.raises(InputError, match="the same flows are there already"):
        imported()
    np.testing.assert_array_equal(whole["bytes"], [20_480, 1536, 1024])
