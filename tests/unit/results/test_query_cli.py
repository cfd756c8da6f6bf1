"""`closloop sql`: its formats, its exit codes, and that the notebook in examples/ runs."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.programs import closloop_in_process

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "examples" / "queries.ipynb"


def ask(*arguments, code=0, given=""):
    done = closloop_in_process("sql", *map(str, arguments), given=given)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.slow
def test_a_table_csv_and_json_say_the_same(campaign):
    query = "select tuner, count(*) as trials from trials group by tuner order by tuner"
    lines = [line.split() for line in ask(campaign, query).splitlines()]
    del lines[1]  # the rule below the heads
    assert lines == [["tuner", "trials"], ["secn1", "5"], ["secn2", "5"]]
    assert [*csv.reader(io.StringIO(ask(campaign, "-", "--format", "csv", given=query)))] == lines
    rows = json.loads(ask(campaign, query, "--json"))
    assert [[row["tuner"], str(row["trials"])] for row in rows] == lines[1:]


@pytest.mark.slow
def test_parquet_goes_to_a_file(campaign, tmp_path):
    path = tmp_path / "rows.parquet"
    ask(campaign, "from flows", "-o", path)
    found = pq.read_table(path)
    assert found.num_rows > 100
    assert found.column_names[:4] == ["run", "campaign", "trial", "flow_id"]
    assert os.listdir(tmp_path) == ["rows.parquet"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["from flows", "--format", "xml"], "unknown 'xml'"),
        (["from flows", "--format", "parquet"], "name one: -o"),
        (["from flows", "-o", "rows.txt"], "give --format"),
        (["from flowz"], "there are trials"),
        (["from flows", "-o", "/nowhere/rows.csv"], "cannot be written"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(campaign, arguments, message):
    said = ask(campaign, *arguments, code=2)
    assert message in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_nothing_is_written_into_a_trials_folder(campaign):
    trial = next(path for path in campaign.iterdir() if path.is_dir())
    assert "trial's folder" in ask(campaign, "from flows", "-o", trial / "flows.parquet", code=2)


@pytest.mark.slow
def test_the_notebook_runs_and_its_output_is_kept(monkeypatch):
    pytest.importorskip("polars")
    pytest.importorskip("pandas")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells[1:])
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, object] = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    assert names["RUNS"]
