"""The live view fits its screen, says what holds, and leaves the terminal as it was."""

import dataclasses
import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from collectors.snapshot import KnobChange, Snapshot
from inventory.files import load_testbed
from orchestration.core.knobs import ECN
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.run.state import RunningTrial, RunState, TrialCounts, TrialState
from orchestration.watch.ports import state_to_json
from orchestration.watch.screen import parse_keys, select_trial
from orchestration.watch.view import view
from tests.testbeds import leaf_spine

CAMPAIGN = """\
campaign: watched
testbed: graphcc
backend: fluid
tuners: [secn1]
traffic:
  - {kind: poisson, workload: WebSearch, load: 0.6}
repeats: 1
duration: 1s
"""


def trial(name, testbed="graphcc", seed=1, t_ns=4_000_000, **changes):
    fabric = load_testbed(testbed)
    queues = len(fabric.queues)
    rng = np.random.default_rng(seed)
    rates = np.repeat([port.rate_bps for port in fabric.switch_ports], fabric.queues_per_port)
    packets = (rng.uniform(0, 1, queues) * rates / 8 * 1e-3 / 1524).astype(np.int64)
    zero = np.zeros(queues, dtype=np.int64)
    length = rng.integers(0, 300_000, queues) * rng.integers(0, 2, queues)
    samples = {"mean_bytes": length * 0.7, "peak_bytes": length * 2}
    samples = {name: changes.pop(name, array) for name, array in samples.items()}
    values = {
        "qlen_bytes": length,
        "tx_bytes": packets * 1500,
        "tx_packets": packets,
        "marked_packets": packets // 5,
        "dropped_packets": zero,
    } | changes
    ranges = {"kmin_bytes": (5_000, 50_000), "kmax_bytes": (200_000, 400_000), "pmax": (0.01, 1)}
    snapshot = Snapshot(
        t_ns,
        t_ns - 1_000_000,
        samples=40,
        late_samples=0,
        flows_done=41,
        changes=39,
        recent=(KnobChange(t_ns - 150_000, t_ns - 100_000, ECN.name, 3, ranges),) * 6,
        values=values,
        before=dict.fromkeys(values, zero),
        settings={ECN.name: ECN.named(zero + 5_000, zero + 200_000, np.full(queues, 0.01))},
        **samples,
    )
    spec = TrialSpec("c", testbed, "fluid", TunerSpec("amt"), (), 1, 1, 10_000_000, 0)
    return TrialState(name, spec, fabric, 123, 0.0, snapshot)


def state(trials, ended="", remarks=(), **counts):
    running = {item.id: RunningTrial(0.0) for item in trials}
    counted = {"trials": 12, "finished": 3, "spent_s": 30.0, "running": running} | counts
    state = Path("runs/quick"), 5.0, TrialCounts(**counted)
    return RunState(*state, ended, tuple(trials), tuple(remarks))


def shown(run, chosen, width=80, height=24, **options):
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    lines = view(run, chosen, width, height, **options)
    for line in lines:
        console.print(line, highlight=False)
    printed = console.file.getvalue().splitlines()
    assert len(printed) == len(lines) <= height
    assert max(len(line) for line in printed) <= width
    return printed


@pytest.mark.parametrize("testbed", ["graphcc", "rlcc-7", "acc", "drlet-k8"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (132, 50), (60, 16)])
def test_every_testbed_fits_every_screen(testbed, width, height):
    trials = [trial(f"a-very-long-name-of-a-trial-{i}-0123456789", testbed) for i in range(7)]
    remarks = [("t", "warning", "a long story about drops " * 9)] * 9
    run = state(trials, remarks=remarks)
    lines = shown(run, trials[3], width, height, keys="q: quit")
    assert lines[0].startswith("quick: 3 of 12 done, 7 running")
    assert lines[-1] == "q: quit"
    assert sum("▸" in line for line in lines) == 1


def test_nothing_is_cut_where_no_terminal_is():
    one = trial("a-very-long-name-of-a-trial-" * 3)
    remark = "a long story about drops " * 9
    lines = view(state([one], remarks=[("t", "warning", remark)]), one, 80, 59, whole=True)
    text = "\n".join(line.plain for line in lines)
    assert one.id in text
    assert remark.strip() in text


def test_the_picture_says_what_the_snapshot_has():
    # One queue only: leaf1's port to its first host, at twice its Kmax.
    full = np.zeros(len(load_testbed("graphcc").queues))
    full[0] = 400_000
    whole = full.astype(np.int64)
    one = trial("one", mean_bytes=full, qlen_bytes=whole, peak_bytes=whole)
    port = one.testbed.switch_ports[0]
    text = "\n".join(shown(state([one]), one))
    assert text.count("█") == 2  # that queue, and the legend's
    assert f"{port.device}:{port.name} → {one.testbed.peer_device(port).name}" in text
    assert "41/123 flows" in text
    assert "4ms/10ms" in text
    assert "20.0 % of those sent" in text
    assert "amt: 39 actions; 3.9ms: 3 queues Kmin 5KB..50KB, Kmax 200KB..400KB, Pmax 1..10" in text


LOSSLESS = leaf_spine("lossless", 4, 2, 6, "25Gbps", "100Gbps", switch="{buffer: 4MB, pfc: [3]}")


def stopped(tmp_path):
    """A trial in which leaf1 stops h1 half of the time, and h2 is told to slow down."""
    path = tmp_path / "lossless.yml"
    path.write_text(LOSSLESS)
    one = trial("one", str(path))
    queues, hosts = np.zeros(40, dtype=np.int64), np.zeros(24, dtype=np.int64)
    switches = np.zeros(6, dtype=np.int64)
    pausing, cnps, rate = queues.copy(), hosts.copy(), hosts.copy()
    pausing[0], cnps[1], rate[:2], switches[0] = 500_000, 250, (50e9, 5e9), 1_000_000
    snapshot = one.snapshot
    counters = {"priority.pausing_ns": pausing, "priority.pauses_sent": pausing // 100_000}
    buffers = {"switch.buffer_bytes": switches, "switch.headroom_bytes": switches // 100}
    of_hosts = {"cnps": cnps, "rate_bps": rate, "rtt_ns": hosts + 9_000}
    return dataclasses.replace(
        one,
        snapshot=dataclasses.replace(
            snapshot,
            values={**snapshot.values, **counters, **buffers},
            before={**snapshot.before, **dict.fromkeys(counters, queues)},
            peak_buffer_bytes=2 * switches,
            hosts_ns=2_000_000,
            hosts_before_ns=1_000_000,
            hosts=of_hosts,
            hosts_before={**of_hosts, "cnps": hosts},
        ),
    )


def test_pauses_buffers_and_hosts_have_lines_and_where_there_is_room_tables(tmp_path):
    one = stopped(tmp_path)
    lines = shown(state([one]), one, keys="q: quit")
    text = "\n".join(lines)
    assert "paused, share of the time: leaf1 → h1 50 %" in lines
    assert "fullest buffer: leaf1 1MB, up to 2MB of 4MB (50 %), headroom 10KB" in lines
    # a host may send no more than its line does
    assert "hosts: CNPs 250k/s (h2 250k), rate 15Gbps (h2 5Gbps), RTT 9us (h1 9us)" in lines
    assert "fullest queues" in text
    assert "hosts slowed down" not in text
    high = shown(state([one]), one, 80, 60)
    row = next(line for line in high if line.startswith("h2 "))
    assert row.split()[:6] == ["h2", "250k", "5Gbps", "20", "%", "9us"]
    wide = shown(state([one]), one, 140, 60)
    assert any("hosts slowed down" in line and "who pauses whom" in line for line in wide)
    data = state_to_json(state([one]))["running_trials"][0]
    assert (data["arm"], data["cell"]) == (one.spec.tuner.name, dict(one.spec.cell))
    assert data["stops"] == [{"device": "leaf1", "peer": "h1", "share": 0.5}]
    assert data["switches"][0]["peak_bytes"] == 2_000_000
    assert data["hosts"][1] == {
        "host": "h2", "cnps_per_s": 250_000.0, "rate_bps": 5e9, "rtt_ns": 9_000.0,
    }  # fmt: skip


def test_a_trial_without_them_says_nothing_of_pauses_buffers_and_hosts():
    one = trial("one")
    text = "\n".join(shown(state([one]), one, 140, 60))
    assert not any(word in text for word in ("stopped", "buffer", "hosts"))
    assert not {"stops", "switches", "hosts"} & set(
        state_to_json(state([one]))["running_trials"][0]
    )


def test_numbers_that_a_device_lacks_are_question_marks():
    queues = len(load_testbed("graphcc").queues)
    none = np.full(queues, -1)
    one = trial("one", qlen_bytes=none, mean_bytes=none.astype(float), peak_bytes=none)
    text = "\n".join(shown(state([one]), one))
    assert "?" * 8 in text
    assert "all queues are empty" in text


def test_a_terminal_without_unicode_gets_ascii():
    one = trial("one" * 40)
    run = state([one], remarks=[("t", "warning", "long " * 40)])
    text = "\n".join(shown(run, one, keys="q: quit", ascii_only=True))
    assert text.isascii()
    empty = dataclasses.replace(one, snapshot=None)
    assert "\n".join(shown(state([empty]), empty, ascii_only=True)).isascii()


def test_drops_and_late_readings_of_the_running_trial_are_warnings():
    queues = len(load_testbed("graphcc").queues)
    one = trial("one", dropped_packets=np.full(queues, 2))
    one = dataclasses.replace(one, snapshot=dataclasses.replace(one.snapshot, late_samples=5))
    text = "\n".join(shown(state([one]), one))
    assert f"warning one: {2 * queues} packets dropped" in text
    assert "warning one: 5 of 40 readings late" in text


def test_an_ended_run_says_so():
    run = state([], ended="was interrupted at 12:00:00", finished=5, invalid=1)
    assert shown(run, None)[0].startswith(
        "quick was interrupted at 12:00:00: 5 of 12 trials done, 1 invalid"
    )


def test_the_newest_trial_is_shown_until_it_ends_or_another_is_chosen():
    old, new = trial("old"), trial("new")
    silent = dataclasses.replace(trial("silent"), snapshot=None)
    both = state([old, new, silent])
    assert select_trial(both, "", None) is new
    assert select_trial(both, "", old) is old
    assert select_trial(both, "silent", old) is silent
    assert select_trial(state([new]), "old", old) is new
    assert select_trial(state([]), "", old) is old


def test_keys():
    assert parse_keys("\x1b[Cn\x1b[Dpazq") == [
        "next", "next", "previous", "previous", "newest", "quit",
    ]  # fmt: skip


class Terminal:
    """A program on a terminal of 80 by 24."""

    def __init__(self, *command, **settings):
        self.master, slave = pty.openpty()
        set_size(slave)
        self.before = termios.tcgetattr(self.master)
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True, preexec_fn=lambda: own(slave), **settings,
        )  # fmt: skip
        os.close(slave)
        self.said = ""

    def until(self, text, seconds=40):
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, f"no {text!r} in {self.said[-3000:]!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.said += os.read(self.master, 65_536).decode(errors="replace")
                except OSError:  # all ends are closed
                    assert text in self.said, self.said[-3000:]

    def type(self, keys):
        os.write(self.master, keys.encode())

    def end(self, seconds=40):
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.said[-3000:]
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.master, 65_536).decode(errors="replace")
                except OSError:
                    break
        return self.process.wait(seconds)

    def assert_clean(self):
        """The screen and the cursor are back, and keys are read as before."""
        assert self.said.rindex("\x1b[?1049l") > self.said.rindex("\x1b[?1049h")
        assert self.said.rindex("\x1b[?25h") > self.said.rindex("\x1b[?25l")
        assert termios.tcgetattr(self.master)[3] == self.before[3]


def own(handle):
    # a shell that runs the tests in the background has SIGINT ignored
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(handle, termios.TIOCSCTTY, 0)


def set_size(handle):
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))


@pytest.fixture
def program():
    """The command line of closloop in this Python."""
    code = "from orchestration.cli.main import main; main()"
    return lambda *arguments: (sys.executable, "-c", code, *map(str, arguments))


@pytest.fixture
def run(tmp_path, program):
    """A campaign that runs for some seconds."""
    file = tmp_path / "watched.yml"
    file.write_text(CAMPAIGN)
    command = program("run", file, "--out", tmp_path / "runs", "--no-report")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    yield tmp_path / "runs" / "watched", process
    process.terminate()
    process.wait(30)


@pytest.mark.slow
def test_watching_over_a_terminal_ends_clean_with_ctrl_c_and_with_the_run(run, program):
    folder, process = run
    deadline = time.monotonic() + 40
    while not list(folder.glob(".*.work/live.bin")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first = Terminal(*program("watch", folder))
    first.until("fullest queues")
    first.type("n")
    first.type("\x03")
    assert first.end() == 130
    first.assert_clean()
    second = Terminal(*program("watch", folder.parent))
    second.until("fullest queues")
    process.send_signal(signal.SIGTERM)
    assert second.end() == 0
    second.assert_clean()
    assert "was interrupted at" in second.said.rpartition("\x1b[?1049l")[2]


@pytest.mark.slow
def test_run_watch_shows_the_fabric_and_then_the_results(tmp_path, program):
    file = tmp_path / "watched.yml"
    file.write_text(CAMPAIGN.replace("1s", "100ms"))
    command = program("run", file, "--out", tmp_path / "runs", "--no-report", "--watch")
    terminal = Terminal(*command)
    terminal.until("fullest queues")
    assert terminal.end() == 0
    terminal.assert_clean()
    after = terminal.said.rpartition("\x1b[?1049l")[2]
    assert "1 of 1 trials" in after
    assert "[1/1] secn1-r1-" in after
