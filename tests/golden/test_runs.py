"""Run folders that must stay readable, and results that must stay the same to the bit.

`runs-0.2` was written by 0.2.0, `runs-0.3` by the commit that added it, from the campaigns beside
them: their emulated trials ran in the kernel. `runs-process` was written by the packet engine in
the process, which orders events of one nanosecond in another way. All are read, reported and
compared. The campaigns of the last two are run again, except the one of a virtual rack and the
imported results: every table has the same schema and the same rows.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import closloop
from orchestration.analysis.comparison.equivalence import DIFFERENT
from orchestration.cli.main import app
from orchestration.results.reader import finished_trials, read_trial
from orchestration.results.tables import TABLES

HERE = Path(__file__).parent
FORMER, RUNS, FIGURES = HERE / "runs-0.2", HERE / "runs-0.3", HERE / "figures"
IN_PROCESS = HERE / "runs-process"
KERNEL = pytest.mark.kernel
NS3 = pytest.mark.ns3
REPLAY = "dctcp-replay-amt-emulated"
RUN_AGAIN = [
    pytest.param("fluid"),
    pytest.param("adaptive"),
    *(
        pytest.param(name, marks=[KERNEL, pytest.mark.slow])
        for name in (
            *("dctcp", "linux", "flowlets", "swift", "timely", "hpcc"),
            *("rlcc", "rlcc-mlp", "rlcc-lstm", f"{REPLAY}.inputs/campaign"),
        )
    ),
    *(pytest.param(name, marks=[NS3, pytest.mark.slow]) for name in ("ns3", "ns3-dcqcn")),
]
FOLDERS = sorted(
    path for runs in (FORMER, RUNS, IN_PROCESS) for path in runs.iterdir() if finished_trials(path)
)
# What 0.2 called HPCC has other parameters, and its folder another campaign.
SAME_CAMPAIGN = sorted(
    path.name for path in RUNS.iterdir() if finished_trials(path) and path.name != "hpcc"
)


def label(path):
    return f"{path.parent.name}-{path.name}"


@pytest.mark.parametrize("folder", FOLDERS, ids=label)
def test_its_tables_are_read_as_they_are_in_the_files(folder):
    for one in finished_trials(folder):
        result = read_trial(one)
        for file in one.glob("*.parquet"):
            stored = pq.read_table(file)
            name = next(name for name, spec in TABLES.items() if spec.file == file.name)
            read = result.table(name)
            for column in set(stored.column_names) & set(read):
                values = [-1 if v is None else v for v in stored[column].to_pylist()]
                assert read[column].tolist() == values or np.array_equal(
                    read[column], np.array(values), equal_nan=True
                ), (file, column)
            assert not set(stored.column_names) - set(read), file


@pytest.mark.parametrize("folder", FOLDERS, ids=label)
def test_its_report_has_the_same_figures(folder):
    expected = json.loads((FIGURES / f"{label(folder)}.json").read_text())
    assert_same(figures(folder), expected, label(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "later"),
    [*((name, RUNS) for name in SAME_CAMPAIGN), ("dcqcn", IN_PROCESS), ("fixed", IN_PROCESS)],
)
def test_the_folder_of_0_2_is_compared_with_a_later_one(name, later, tmp_path):
    runs = [shutil.copytree(runs / name, tmp_path / runs.name / name) for runs in (FORMER, later)]
    (comparison,) = closloop.compare(*runs)
    assert sum(len(cell.pairs) for cell in comparison.cells) == len(finished_trials(later / name))
    assert all(item.verdict != DIFFERENT for item in comparison.metrics)


@pytest.mark.parametrize("name", RUN_AGAIN)
def test_it_is_made_again_to_the_bit(name, tmp_path, monkeypatch):
    monkeypatch.chdir(RUNS)  # a testbed is named as it is found from here
    closloop.run(f"{name}.yml", out=tmp_path, jobs=2)
    assert_made_again(tmp_path, RUNS)


@pytest.mark.parametrize("name", ["fixed", "dcqcn", "pfc"])
def test_it_is_made_again_in_the_process(name, tmp_path, monkeypatch):
    monkeypatch.chdir(IN_PROCESS)
    closloop.run(f"{name}.yml", out=tmp_path, jobs=1)
    assert_made_again(tmp_path, IN_PROCESS)


@KERNEL
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed", "dcqcn"])
def test_the_kernel_makes_again_what_runs_in_the_process_now(name, tmp_path, monkeypatch):
    monkeypatch.chdir(RUNS)
    command = ["run", f"{name}.yml", "--in", "kernel", "--out", str(tmp_path), "--no-report"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert_made_again(tmp_path, RUNS)


def assert_made_again(out, runs):
    """The one run folder in `out` has the same trials and tables as that of its name in `runs`."""
    (made,) = out.iterdir()
    golden = finished_trials(runs / made.name)
    assert [one.name for one in finished_trials(made)] == [one.name for one in golden]
    for expected in golden:
        found = made / expected.name
        tables = sorted(path.name for path in expected.glob("*.parquet"))
        assert sorted(path.name for path in found.glob("*.parquet")) == tables
        for table in tables:
            one, other = pq.read_table(expected / table), pq.read_table(found / table)
            assert other.schema.equals(one.schema, check_metadata=True), expected / table
            assert other.equals(one), expected / table
        specs = [json.loads((one / "trial.json").read_text())["spec"] for one in (expected, found)]
        assert specs[1] == specs[0]


def figures(folder):
    """The figures of a report, by trial and by condition, without those that are unknown."""
    asked = CliRunner().invoke(app, ["report", str(folder), "--json", "--no-html"])
    assert asked.exit_code == 0, asked.output
    summary = json.loads(asked.stdout)
    trials = {one["id"]: one["metrics"] for one in summary["trials"]}
    conditions = [
        {
            "estimates": {item["arm"]: item["estimates"] for item in one["arms"]},
            "differences": {
                f"{item['metric']} of {item['arm']}": item["difference"]
                for item in one["comparisons"]
            },
        }
        for one in summary["conditions"]
    ]
    return known({"trials": trials, "conditions": conditions})


def known(data):
    """Leave out what is null, down to the last level."""
    if isinstance(data, dict):
        return {key: known(value) for key, value in data.items() if value is not None}
    return [known(value) for value in data] if isinstance(data, list) else data


def assert_same(found, expected, where):
    """What is expected is found; numbers to the last digits, where processors may differ."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in found, f"{where}: no {key}"
            assert_same(found[key], value, f"{where}: {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, where)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9), where
    else:
        assert found == expected, where


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    for path in FOLDERS:
        text = json.dumps(figures(path), indent=None, separators=(",", ":"))
        (FIGURES / f"{label(path)}.json").write_text(text.replace('},"', '},\n"') + "\n")
