"""Measures what watching a trial costs, and sending it to InfluxDB."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from collectors.sinks.influx import Server
from collectors.sinks.spool import Place, spooled_runs
from collectors.sinks.spooling import SpoolNote, SpoolObserver, leave_note
from collectors.snapshot import EVERY_S, LiveObserver
from inventory.files import load_testbed
from inventory.topology import Testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.model.knobs import ECN
from orchestration.model.records import Ints, Observation
from orchestration.model.signals import names
from orchestration.model.trial import IncastSpec
from orchestration.studies.bench.outcome import (
    MILLISECOND,
    Figure,
    Outcome,
    bench_folder,
    bench_trial,
    websearch,
)
from orchestration.telemetry.points import spool_batches
from orchestration.telemetry.process import SenderProcess
from orchestration.telemetry.settings import Settings
from traffic.schedule import make_schedule

_READINGS = 20_000
_WATCHED = bench_trial(websearch(200 * MILLISECOND), 200 * MILLISECOND)
_MOST_SHARE = 0.01


def watching_cost() -> Outcome:
    """What readings and pictures of 40 and 1,000 queues cost, and their share of a fluid trial."""
    figures = []
    for queues in (40, 1000):
        readings = _reading_s(queues, lambda: 0.0)
        pictures = _reading_s(queues, _Hurried())
        figures += [
            Figure(f"a reading of {queues} queues", f"{readings * 1e6:.1f} us"),
            Figure(f"a picture of {queues} queues", f"{pictures * 1e6:.0f} us"),
        ]
    share = _share_of_a_trial()
    wanted = f"at most {_MOST_SHARE:.0%}"
    what = "share of the trial's CPU time"
    figures.append(Figure(what, f"{share:.2%}", wanted, share <= _MOST_SHARE))
    title = "Watching: graphcc, WebSearch at 60 %, 200 ms on the fluid backend"
    return Outcome(title, tuple(figures))


class _Hurried:
    """A clock that makes every reading due for display."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 2 * EVERY_S
        return self._now_s


def _reading_s(queues: int, clock: Callable[[], float]) -> float:
    """Return the CPU seconds that the live view takes per reading."""
    zero = np.zeros((len(names("queue")), queues), dtype=np.int64)
    made = [_reading(number, zero) for number in range(_READINGS)]
    with bench_folder() as folder:
        observer = LiveObserver(folder, _WATCHED, lambda: 0, clock=clock)
        begin_s = time.process_time()
        for observation in made:
            observer.observed(observation)
        return (time.process_time() - begin_s) / _READINGS


def _reading(number: int, columns: Ints) -> Observation:
    """Return a reading; `columns` has one row per queue signal."""
    zeros = np.zeros(columns.shape[1], dtype=np.int64)
    values = dict(zip(names("queue"), columns, strict=True))
    settings = {ECN.name: ECN.named(zeros, zeros, zeros.astype(np.float64))}
    return Observation((number + 1) * 100_000, zeros, values, settings)


def _share_of_a_trial() -> float:
    """Return the live view's share of a trial's CPU time: its pictures, and all other readings."""
    pictures_s, write = 0.0, LiveObserver._write

    def timed(self: LiveObserver, observation: Observation) -> None:
        nonlocal pictures_s
        begin_s = time.process_time()
        write(self, observation)
        pictures_s += time.process_time() - begin_s

    testbed = load_testbed("graphcc")
    schedule = make_schedule(_WATCHED, testbed)
    with bench_folder() as folder, patch.object(LiveObserver, "_write", timed):
        begin_s = time.process_time()
        record = FluidBackend().run(_WATCHED, testbed, schedule, folder, lambda *_: None)
        all_s = time.process_time() - begin_s
    readings_s = len(record.ports.t_ns) * _reading_s(len(testbed.queues), lambda: 0.0)
    return (pictures_s + readings_s) / all_s


_WANTED_PER_S = 100_000
_MOST_GROWTH = 0.03
_SPOOL_BYTES = 1 << 30
_ROUNDS = 60
_SETTLE_S = 4.0
_SENT = bench_trial(
    (
        *websearch(10 * MILLISECOND),
        IncastSpec(16, 512_000, 5 * MILLISECOND, 0, 10 * MILLISECOND),
    ),
    10 * MILLISECOND,
    drain_ns=200 * MILLISECOND,
)


def influx_sink() -> Outcome:
    """Records a second that the InfluxDB sink takes, and what it costs with the server down."""
    testbed = load_testbed("graphcc")
    with bench_folder() as folder:
        taken = _taken_per_s(testbed, folder)
        made = _lines_per_s(folder)
        without_s, with_s, share = _trials(folder, testbed)
    plain, sinking = min(without_s), min(with_s)
    growth = sinking / plain - 1
    figures = (
        Figure(
            f"taken from the loop, {len(testbed.queues)} records a reading",
            f"{taken:,.0f} records/s on one core",
            f"{_WANTED_PER_S:,} records/s",
            taken >= _WANTED_PER_S,
        ),
        Figure("made into lines by the sender", f"{made:,.0f} records/s on one core"),
        Figure(
            "a trial's wall time with the server down",
            f"{growth:+.1%} ({1e3 * plain:.0f} ms without the sink, {1e3 * sinking:.0f} ms with)",
            f"at most {_MOST_GROWTH:+.0%}",
            growth <= _MOST_GROWTH,
        ),
        Figure("the sender meanwhile", f"{share:.1%} of a core, at a low priority"),
    )
    notes = (
        "a record is one queue at one reading: five counters, two times, six tags",
        f"the trial: {len(testbed.queues)} queues each 100 us on the fluid model, the backend that "
        "takes the least time for a reading, some 0.5 ms; on the emulated fabric it is 20 ms, and "
        f"nothing is taken from the loop; the least of {len(with_s)} runs each way, in turns",
    )
    data = {
        "taken_per_s": taken,
        "lines_per_s": made,
        "without_s": without_s,
        "with_s": with_s,
        "sender_share": share,
    }
    return Outcome("The InfluxDB sink", figures, notes, data)


def _taken_per_s(testbed: Testbed, folder: Path) -> float:
    """Return how many records an observer spools per CPU second of this process."""
    note = SpoolNote(str(folder / "spool"), _SPOOL_BYTES, "bench", "trial")
    observer = SpoolObserver(note, testbed)
    readings = _readings(testbed)
    begin_s = time.process_time()
    for reading in readings:
        observer.observed(reading)
    spent_s = time.process_time() - begin_s
    observer.close()
    return len(readings) * len(testbed.queues) / spent_s


def _readings(testbed: Testbed) -> list[Observation]:
    queues = len(testbed.queues)
    draw = np.random.default_rng(1)
    grown = np.cumsum(draw.integers(0, 300_000, (4, _READINGS, queues)), axis=1)
    lengths = draw.integers(0, 400_000, (_READINGS, queues))
    columns = np.concatenate((lengths[None], grown))
    return [_reading(number, columns[:, number]) for number in range(_READINGS)]


def _lines_per_s(folder: Path) -> float:
    """Return how many lines are made from the spool per CPU second of this process."""
    [run] = spooled_runs(folder / "spool")
    about = run.about()
    assert about is not None
    begin_s = time.process_time()
    lines = sum(len(batch.lines) for batch in spool_batches(run, about, Place()))
    return lines / (time.process_time() - begin_s)


def _trials(folder: Path, testbed: Testbed) -> tuple[list[float], list[float], float]:
    """Return wall times of a trial without and with the sink, while its server is down.

    The third value is the share of a core that the sender takes meanwhile, without its start.
    """
    schedule = make_schedule(_SENT, testbed)
    campaign = folder / "sink"
    campaign.mkdir()
    times: tuple[list[float], list[float]] = ([], [])
    with _nobody() as server:
        home = Settings(server, _SPOOL_BYTES).home(campaign)
        sender = SenderProcess(campaign)
        try:
            for number in range(_ROUNDS + 1):
                for sink, found in enumerate(times):
                    work = folder / f"{number}-{sink}"
                    work.mkdir()
                    if sink:
                        name = f"{_SENT.id}-{number}"
                        leave_note(work, SpoolNote(str(home), _SPOOL_BYTES, "sink", name))
                    begin_s = time.perf_counter()
                    FluidBackend().run(_SENT, testbed, schedule, work, lambda t_ns, end_ns: None)
                    if number:  # the first round loads modules and fills caches
                        found.append(time.perf_counter() - begin_s)
                if not number:
                    time.sleep(_SETTLE_S)
                    begun = (time.perf_counter(), _cpu_s(sender.pid))
            share = (_cpu_s(sender.pid) - begun[1]) / (time.perf_counter() - begun[0])
        finally:
            sender.close()
    return *times, share


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _nobody() -> Iterator[Server]:
    """Point the environment at a port where nothing listens, and yield that server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        values = {"URL": url, "ORG": "bench", "BUCKET": "bench", "TOKEN": "none"}
        kept = dict(os.environ)
        os.environ.update({f"CLOSLOOP_INFLUX_{name}": text for name, text in values.items()})
        try:
            yield Server(url, "bench", "bench", "none")
        finally:
            os.environ.clear()
            os.environ.update(kept)
