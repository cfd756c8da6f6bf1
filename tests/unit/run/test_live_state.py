"""A run's state, read from its folder while it runs, after it ended, and after it was killed."""

import dataclasses
import fcntl
import json
import os
import time

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError, TrialError
from orchestration.core.knobs import ECN
from orchestration.run.launcher import run_campaign
from orchestration.run.state import RunReader, find_run
from orchestration.watch.heatmap import UNKNOWN, Cell, lay_out, level
from orchestration.watch.ports import fullest_ports, port_metrics, state_to_json
from tests.trials import incast_campaign

CAMPAIGN = incast_campaign("tiny", "secn1, amt", 1)


class Looking:
    """A listener that looks at the run's folder whenever the runner has time."""

    def __init__(self, folder):
        self.reader = RunReader(folder)
        self.states = []

    def planned(self, *_):
        pass

    started = progressed = finished = failed = planned

    def tick(self):
        state = self.reader.read()
        self.states.append(state)
        for trial in state.trials:
            if trial.snapshot:
                seen(self.reader.folder, trial.spec).touch()


def seen(folder, trial):
    """Return the file that says that a running trial has been looked at."""
    return folder.parent / f"{trial.id}.seen"


class Slow(FluidBackend):
    """Runs a trial, and stays until it has been looked at."""

    def run(self, run):
        record = super().run(run)
        while not seen(self.run_folder, run.trial).exists():
            time.sleep(0.01)
        if run.trial.tuner.name == "amt":
            raise TrialError("a cable is loose", "plug it in")
        return record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a campaign, looked at from its own process."""
    place = tmp_path_factory.mktemp("live")
    file = place / "tiny.yml"
    file.write_text(CAMPAIGN)
    looking = Looking(place / "runs" / "tiny")
    backend = Slow()
    backend.run_folder = looking.reader.folder
    run_campaign(load_campaign(file), backend, place / "runs", 1, looking)
    return looking


def test_a_running_trial_shows_its_ports(run):
    seen = [trial for state in run.states for trial in state.trials if trial.snapshot]
    assert {trial.spec.tuner.name for trial in seen} == {"secn1", "amt"}
    trial = seen[0]
    assert trial.testbed.queues == load_testbed("rlcc-7").queues
    assert trial.flows > 0
    assert len(trial.snapshot.qlen_bytes) == len(trial.testbed.queues)
    running = next(state for state in run.states if state.trials)
    assert not running.ended
    assert running.counts.trials == 2


def test_the_end_is_told_with_what_went_wrong(run):
    state = run.reader.read()
    assert state.ended.startswith("finished at ")
    assert (state.counts.finished, state.counts.failed, len(state.counts.running)) == (1, 1, 0)
    assert state.trials == ()
    assert [(kind, text) for _, kind, text in state.remarks] == [("failed", "a cable is loose")]


def test_the_state_is_valid_json(run):
    state = next(state for state in run.states if state.trials and state.trials[0].snapshot)
    data = json.loads(json.dumps(state_to_json(state), allow_nan=False))
    (trial,) = data["running_trials"]
    assert len(trial["ports"]) == len(load_testbed("rlcc-7").switch_ports)
    assert {"device", "port", "to", "queue_bytes", "utilisation"} <= set(trial["ports"][0])


def test_a_killed_run_is_told_from_one_that_goes_on(run, tmp_path):
    journal = (run.reader.folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(journal[:3]) + b'{"torn')
    assert RunReader(tmp_path).read().ended == ("was killed: no process locks its folder any more")


def test_watching_takes_no_lock_and_writes_nothing(run):
    before = sorted(path.name for path in run.reader.folder.iterdir())
    handle = os.open(run.reader.folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    RunReader(run.reader.folder).read()
    os.close(handle)
    assert sorted(path.name for path in run.reader.folder.iterdir()) == before


def test_a_journal_put_aside_starts_the_story_anew(run, tmp_path):
    entry = {"at": "2026-01-01T00:00:00+00:00", "event": "run-started", "jobs": 1, "finished": 0}
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps(entry | {"trials": 9}) + "\n")
    reader = RunReader(tmp_path)
    assert reader.read().counts.trials == 9
    path.rename(tmp_path / "aside")
    reader.read()
    path.write_text(json.dumps(entry | {"trials": 4}) + "\n")
    assert reader.read().counts.trials == 4


def test_the_newest_of_several_runs_is_found(run, tmp_path):
    for name, at in (("old", 100), ("new", 200)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").touch()
        os.utime(tmp_path / name / "journal.jsonl", (at, at))
    assert find_run(tmp_path) == tmp_path / "new"
    assert find_run(tmp_path / "old") == tmp_path / "old"
    with pytest.raises(InputError, match="is not a run folder"):
        find_run(tmp_path / "nowhere")


def test_figures_of_ports_are_those_of_the_counters(run):
    trial = next(trial for state in run.states for trial in state.trials if trial.snapshot)
    testbed, shown = trial.testbed, trial.snapshot
    ports = len(testbed.switch_ports)
    zero = np.zeros(ports, dtype=np.int64)
    rate = np.array([port.rate_bps for port in testbed.switch_ports])
    # Half the line rate for 1 ms, in packets of 1,000 bytes with 24 of framing each.
    packets = (rate / 2 * 1e-3 / 8 / 1024).astype(np.int64)
    made = dataclasses.replace(
        shown,
        t_ns=2_000_000,
        before_ns=1_000_000,
        values={
            **shown.values,
            "tx_packets": packets,
            "tx_bytes": packets * 1000,
            "marked_packets": packets // 4,
            "dropped_packets": zero - 1,
        },
        before=dict.fromkeys(shown.values, zero),
        mean_bytes=zero + np.arange(ports) * 100.0,
        settings={ECN.name: ECN.named(zero, zero + 1000, np.zeros(ports))},
    )
    figures = port_metrics(testbed, made)
    assert figures.utilisation == pytest.approx(0.5, rel=1e-3)
    assert figures.marked_share == pytest.approx(0.25, rel=1e-3)
    assert figures.fill.tolist() == pytest.approx(np.arange(ports) / 10)
    assert np.isnan(figures.dropped_packets).all()  # -1: the device does not count them
    assert fullest_ports(figures, 2) == [ports - 1, ports - 2]


def test_levels_of_cells():
    values = np.array([0.0, 0.1, 0.5, 0.999, 1.0, 7.0, np.nan])
    found = [level(Cell((port,)), values) for port in range(len(values))]
    assert found == [0, 1, 4, 7, 8, 8, UNKNOWN]
    assert level(Cell((0, 2, 6)), values) == 4


@pytest.mark.parametrize(("lines", "ports"), [(9, True), (5, False)])
def test_the_map_has_a_cell_a_port_where_there_is_room(lines, ports):
    testbed = load_testbed("graphcc")
    laid = lay_out(testbed, 80, lines)
    cells = [cell for row in laid.rows for block in row.blocks for cell in block.cells]
    assert laid.cell_is_port is ports
    assert sorted(port for cell in cells for port in cell.ports) == list(
        range(len(testbed.switch_ports))
    )
    assert [row.tier for row in laid.rows] == ["spine", "leaf"]
    assert sum(row.lines for row in laid.rows) <= lines


def test_devices_without_room_are_counted():
    testbed = load_testbed("graphcc")
    laid = lay_out(testbed, 80, 2)
    assert laid.left_out == 4
