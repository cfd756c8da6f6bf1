"""What the InfluxDB sink costs a trial, and how fast its sender is."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from collectors.sinks.influx import Server
from collectors.sinks.spool import Place, spooled_runs
from collectors.sinks.spooling import SpoolNote, SpoolObserver, leave_note
from inventory.files import load_testbed
from inventory.topology import Testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.model.knobs import ECN
from orchestration.model.records import Observation
from orchestration.model.signals import names
from orchestration.studies.bench.outcome import Figure, Outcome
from orchestration.telemetry.process import SenderProcess
from orchestration.telemetry.settings import Settings
from orchestration.telemetry.source import spool_batches
from traffic.schedule import make_schedule

_WANTED_PER_S = 100_000
_MOST_GROWTH = 0.03
_READINGS = 20_000
_SPOOL_BYTES = 1 << 30
_ROUNDS = 60
_SETTLE_S = 4.0
_CAMPAIGN = """\
campaign: sink
testbed: graphcc
backend: fluid
tuners: [secn1]
traffic:
  - {kind: poisson, workload: WebSearch, load: 0.6}
  - {kind: incast, fan_in: 16, size: 512KB, period: 5ms}
repeats: 1
duration: 10ms
"""


def influx_sink() -> Outcome:
    """Records a second that the InfluxDB sink takes, and what it costs with the server down."""
    testbed = load_testbed("graphcc")
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as folder:
        taken = _taken_per_s(testbed, Path(folder))
        made = _lines_per_s(Path(folder))
        without_s, with_s, share = _trials(Path(folder), testbed)
    plain, sinking = min(without_s), min(with_s)
    growth = sinking / plain - 1
    data: dict[str, Any] = {
        "taken_per_s": taken,
        "lines_per_s": made,
        "without_s": without_s,
        "with_s": with_s,
        "sender_share": share,
    }
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
    return Outcome("The InfluxDB sink", figures, notes, data)


def _taken_per_s(testbed: Testbed, folder: Path) -> float:
    """Return the records a second of this process's time that an observer spools."""
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
    zeros = np.zeros(queues, dtype=np.int64)
    return [
        Observation(
            (number + 1) * 100_000,
            zeros,
            dict(zip(names("queue"), (lengths[number], *grown[:, number]), strict=True)),
            {ECN.name: ECN.named(zeros, zeros, zeros.astype(np.float64))},
        )
        for number in range(_READINGS)
    ]


def _lines_per_s(folder: Path) -> float:
    """Return the lines a second of this process's time that are made from the spool."""
    [run] = spooled_runs(folder / "spool")
    about = run.about()
    assert about is not None
    begin_s = time.process_time()
    lines = sum(len(batch.lines) for batch in spool_batches(run, about, Place()))
    return lines / (time.process_time() - begin_s)


def _trials(folder: Path, testbed: Testbed) -> tuple[list[float], list[float], float]:
    """Return the wall times of a trial without the sink and with it, while its server is down.

    The third is the share of a core that the sender takes meanwhile, its start not counted.
    """
    file = folder / "sink.yml"
    file.write_text(_CAMPAIGN, encoding="utf-8")
    [trial] = load_campaign(file).trials
    schedule = make_schedule(trial, testbed)
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
                        name = f"{trial.id}-{number}"
                        leave_note(work, SpoolNote(str(home), _SPOOL_BYTES, "sink", name))
                    begin_s = time.perf_counter()
                    FluidBackend().run(trial, testbed, schedule, work, lambda t_ns, end_ns: None)
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
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _nobody() -> Any:
    """Set the environment to a port where nobody listens, and yield that server."""
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
