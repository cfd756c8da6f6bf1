import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.errors import InputError
from orchestration.core.records import MISSING
from orchestration.core.signals import Signal
from orchestration.results.tables import TABLES, Names, TableSpec, read_table, write_table

EVENTS = {"t_ns": [5, 7], "kind": ["fault", "fault"], "detail": ["down", "up"]}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "events.parquet"
    write_table(path, "events", EVENTS)
    return path


def test_the_file_says_its_table_and_version(file):
    metadata = pq.read_schema(file).metadata
    assert metadata[b"closloop.table"] == b"events"
    assert metadata[b"closloop.version"] == b"1"


def test_names_are_dictionaries_and_data_is_zstd(tmp_path):
    path = tmp_path / "hosts.parquet"
    names = Names(np.array([1, 0, 1]), ("h0", "h1"))
    zeros = [0, 0, 0]
    write_table(
        path,
        "hosts",
        {name: names if name == "host" else zeros for name in TABLES["hosts"].columns},
    )
    assert pa.types.is_dictionary(pq.read_schema(path).field("host").type)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert list(read_table(path, "hosts")["host"]) == ["h1", "h0", "h1"]


def test_a_newer_version_is_refused_with_what_to_do(file, monkeypatch):
    monkeypatch.setitem(TABLES, "events", TableSpec("events", 2, TABLES["events"].columns))
    write_table(file, "events", EVENTS)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"version 2 .* reads versions up to 1") as error:
        read_table(file, "events")
    assert "newer" in error.value.problems[0].remedy


@pytest.mark.parametrize(("written", "missing"), [(1, {"b", "c"}), (2, {"c"}), (3, set())])
def test_signals_that_joined_after_a_file_was_written_are_missing_in_it(
    tmp_path, monkeypatch, written, missing
):
    signals = [
        Signal(name, "host", "B", "a counter", cumulative=True, since=since)
        for name, since in (("a", 1), ("b", 2), ("c", 3))
    ]
    path = tmp_path / "hosts.parquet"
    for version in (written, 3):
        columns = {"t_ns": pa.int64(), "host": pa.string()}
        columns |= {one.name: pa.int64() for one in signals if one.since <= version}
        monkeypatch.setitem(TABLES, "hosts", TableSpec("hosts", version, columns))
        if not path.exists():
            rows = {name: ["h0", "h1"] if name == "host" else [5, 7] for name in columns}
            write_table(path, "hosts", rows)
    monkeypatch.setattr(
        "orchestration.results.tables.recorded", lambda scope: signals if scope == "host" else ()
    )
    table = read_table(path, "hosts")
    assert list(table["host"]) == ["h0", "h1"]
    for name in ("t_ns", "a", "b", "c"):
        assert list(table[name]) == ([MISSING, MISSING] if name in missing else [5, 7]), name


def test_a_column_that_no_later_version_added_is_not_made_up(file, monkeypatch):
    columns = {**TABLES["events"].columns, "device": pa.string()}
    monkeypatch.setitem(TABLES, "events", TableSpec("events", 2, columns))
    with pytest.raises(InputError, match="has no column 'device'"):
        read_table(file, "events")


def test_another_table_is_refused(file):
    with pytest.raises(InputError, match="is table 'events', not the table 'flows'"):
        read_table(file, "flows")


def test_a_parquet_file_of_someone_else_is_refused(tmp_path):
    path = tmp_path / "events.parquet"
    pq.write_table(pa.table({"t_ns": [1]}), path)
    with pytest.raises(InputError, match="was not written by closloop"):
        read_table(path, "events")


def test_a_table_that_lacks_a_column_is_refused(file):
    table = pq.read_table(file).drop_columns(["detail"])
    pq.write_table(table, file)
    with pytest.raises(InputError, match="has no column 'detail'"):
        read_table(file, "events")


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.sampled_from("abc"), st.text())))
def test_whatever_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "events.parquet"
    t_ns, kind, detail = ([row[place] for row in rows] for place in range(3))
    write_table(path, "events", {"t_ns": t_ns, "kind": kind, "detail": detail})
    table = read_table(path, "events")
    assert [list(table[name]) for name in ("t_ns", "kind", "detail")] == [t_ns, kind, detail]
