"""Run folders of 0.1 are read: `runs-0.1` was written by that version, on what it called `fake`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestration.campaign.expand import load_campaign
from orchestration.results.reader import finished_trials, read_trial

RUNS = Path(__file__).parent / "runs-0.1"
# Ids and sums as 0.1 itself read them.
IDS = ("amt-r1-91f30f41f9", "secn1-r1-5309e5f837")
SUMS = {
    "amt-r1-91f30f41f9": {
        "flows.end_ns": (22, 14765244),
        "flows.ideal_ns": (22, 1997378),
        "ports.qlen_bytes": (126, 2652718),
        "ports.tx_bytes": (126, 225656658),
        "ports.tx_packets": (126, 149226),
        "ports.marked_packets": (126, 43340),
        "hosts.tx_bytes": (126, 228309377),
        "hosts.timeouts": (126, 0),
        "actions.kmin_bytes": (23, 8390040),
        "actions.kmax_bytes": (23, 8390040),
        "actions.pmax": (23, 23.0),
        "events.t_ns": (0, 0),
    },
    "secn1-r1-5309e5f837": {
        "flows.end_ns": (22, 14868572),
        "flows.ideal_ns": (22, 1997378),
        "ports.qlen_bytes": (126, 1610744),
        "ports.tx_bytes": (126, 225668375),
        "ports.tx_packets": (126, 149234),
        "ports.marked_packets": (126, 35466),
        "hosts.tx_bytes": (126, 227279116),
        "hosts.timeouts": (126, 0),
        "actions.kmin_bytes": (7, 35000),
        "actions.kmax_bytes": (7, 1400000),
        "actions.pmax": (7, 0.07),
        "events.t_ns": (0, 0),
    },
}


@pytest.fixture
def folder(tmp_path):
    """The run folder, and its campaign as a later version continues it: loads drawn as before."""
    copy = shutil.copytree(RUNS, tmp_path / "runs")
    drawn = (copy / "tiny.yml").read_text().replace("load: 0.3", "load: 0.3, draw: independent")
    for file in (copy / "tiny.yml", copy / "tiny" / "campaign.yml"):
        file.write_text(drawn)
    return copy


def closloop(folder, *arguments):
    code = "import sys; from orchestration.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_trials_keep_their_ids_and_their_backend_has_its_new_name():
    folders = finished_trials(RUNS / "tiny")
    assert sorted(one.name for one in folders) == sorted(IDS)
    for one in folders:
        assert json.loads((one / "trial.json").read_text())["spec"]["backend"] == "fake"
        spec = read_trial(one).spec
        assert spec.backend == "fluid"
        assert spec.id == one.name


@pytest.mark.parametrize("name", ["fake", "fluid"])
def test_the_campaign_has_the_same_trials_under_either_name(folder, name):
    file = folder / "tiny.yml"
    file.write_text(file.read_text().replace("backend: fake", f"backend: {name}"))
    assert sorted(trial.id for trial in load_campaign(file).trials) == sorted(IDS)


@pytest.mark.parametrize("trial", IDS)
def test_tables_hold_what_0_1_read_in_them(trial):
    result = read_trial(RUNS / "tiny" / trial)
    for place, (rows, total) in SUMS[trial].items():
        table, column = place.split(".")
        values = result.table(table)[column]
        assert len(values) == rows, place
        assert values.sum().item() == pytest.approx(total, rel=1e-12), place
    queues = len(result.testbed.queues)
    ports = result.ports
    assert ports.qlen_bytes.shape == (len(ports.t_ns), queues)
    assert ports.qlen_bytes.sum() == SUMS[trial]["ports.qlen_bytes"][1]


@pytest.mark.slow
def test_the_same_campaign_is_finished_already(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    done = closloop(folder, "run", "tiny.yml", "--out", ".", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "2 trials, 2 of them finished earlier" in done.stderr
    assert "backend 'fake' is called 'fluid' now" in done.stderr
    changed = [path.name for path, data in before.items() if path.read_bytes() != data]
    assert changed == ["journal.jsonl"]
    assert (
        "trial-started" not in (folder / "tiny/journal.jsonl").read_text().split("run-finished")[1]
    )


@pytest.mark.slow
def test_with_loads_drawn_by_strata_it_is_another_campaign(folder):
    """The file as 0.1 had it, which did not say how loads are drawn."""
    shutil.copy(RUNS / "tiny.yml", folder / "tiny.yml")
    done = closloop(folder, "run", "tiny.yml", "--out", ".", "--no-report")
    assert done.returncode == 2
    assert "holds 2 finished trials that tiny.yml no longer describes" in done.stderr
    assert "draw: independent" in done.stderr


@pytest.mark.slow
def test_it_is_reported_and_compared(folder):
    reported = closloop(folder, "report", "tiny", "--no-html", "--full")
    assert reported.returncode == 0, reported.stderr
    assert "secn1" in reported.stdout
    assert "packets marked" in reported.stdout
    compared = closloop(folder, "compare", "tiny", "tiny")
    assert compared.returncode == 0, compared.stderr
    assert "compare.html" in compared.stderr


@pytest.mark.slow
def test_it_is_asked_in_sql(folder):
    query = "select trial, sum(qlen_bytes) from ports group by trial order by trial"
    asked = closloop(folder, "sql", "tiny", query, "--format", "csv")
    assert asked.returncode == 0, asked.stderr
    rows = dict(line.replace(chr(34), "").split(",") for line in asked.stdout.split()[1:])
    assert {name: int(total) for name, total in rows.items()} == {
        name: SUMS[name]["ports.qlen_bytes"][1] for name in IDS
    }


@pytest.mark.slow
def test_it_is_replayed_to_the_same_tables(folder):
    replayed = closloop(folder, "replay", "tiny", "--out", "again", "--no-report")
    assert replayed.returncode == 0, replayed.stderr
    again = [read_trial(one) for one in finished_trials(folder / "again" / "tiny-replay-fluid")]
    assert len(again) == len(IDS)
    for result in again:
        origin = read_trial(folder / "tiny" / result.spec.parent.split()[0].removeprefix("tiny/"))
        for table in ("flows", "ports", "hosts", "actions"):
            for column, values in origin.table(table).items():
                np.testing.assert_array_equal(result.table(table)[column], values, column)
