"""The outcome of a benchmark, its presentation, and helpers that benchmarks share."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from inventory.files import load_testbed
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.core.pattern import PatternSpec
from orchestration.core.ports import Backend, TrialRun
from orchestration.core.records import Schedule, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import CLOSLOOP, TrialSpec, TunerSpec
from orchestration.render.markdown import rows_table
from orchestration.run import backend_factory
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule

MILLISECOND = 1_000_000
SECN1 = TunerSpec("secn1")


@dataclass(frozen=True)
class Figure:
    """One figure: what was measured, the result, its target, and whether it meets the target.

    `wanted` is empty and `holds` is None if there is no target.
    """

    what: str
    measured: str
    wanted: str = ""
    holds: bool | None = None


def at_most(what: str, value: float, limit: float, digits: int, unit: str = "") -> Figure:
    """Return a figure that meets its target if `value` is at most `limit`."""
    return Figure(what, f"{value:.{digits}f}{unit}", f"{limit:g}{unit}", bool(value <= limit))


def zero(what: str, count: int) -> Figure:
    """Return the figure of a count that must be 0."""
    return Figure(what, str(count), "0", count == 0)


@dataclass(frozen=True)
class Outcome:
    """A benchmark's figures, notes and raw data, and a chart for the page as Mermaid source."""

    title: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    picture: str = ""

    @property
    def holds(self) -> bool:
        """True unless a figure misses its target."""
        return all(figure.holds is not False for figure in self.figures)


Outcomes = Sequence[tuple[str, Outcome]]

_HEAD = """# Benchmarks

Written by `closloop bench run … --markdown PAGE`, which replaces the sections of what it ran. Wall
times depend on the machine; everything else is virtual time.
"""
_NAME = re.compile(r"^`closloop bench run ([\w-]+)`", re.MULTILINE)


def as_text(outcome: Outcome) -> str:
    """Return an outcome as text for the terminal."""
    lines = [outcome.title]
    for figure in outcome.figures:
        wanted = f"  (target: {figure.wanted})" if figure.wanted else ""
        lines.append(f"  {_verdict(figure):4} {figure.what}: {figure.measured}{wanted}")
    lines += [f"       {note}" for note in outcome.notes]
    return "\n".join(lines)


def as_markdown(outcomes: Outcomes, former_page: str = "") -> str:
    """Return a Markdown page of all outcomes.

    Sections of the page `former_page` on other benchmarks are kept.
    """
    sections = {_NAME.findall(text)[0]: text for text in former_page.split("\n## ")[1:]}
    return "\n## ".join([_HEAD, *(sections | dict(map(_section, outcomes))).values()])


def _section(named: tuple[str, Outcome]) -> tuple[str, str]:
    name, outcome = named
    lines = [outcome.title, "", f"`closloop bench run {name}`, {datetime.now(UTC):%Y-%m-%d}, "]
    lines[-1] += f"{os.cpu_count()} cores, Linux {platform.release()}"
    rows = [
        [figure.what, figure.measured, figure.wanted, _verdict(figure)]
        for figure in outcome.figures
    ]
    lines += ["", rows_table(("", "measured", "target", ""), rows).rstrip()]
    picture = ["", "```mermaid", outcome.picture, "```"] if outcome.picture else []
    return name, "\n".join([*lines, *picture, *(f"\n{note}" for note in outcome.notes), ""])


def as_json(outcomes: Outcomes) -> str:
    """Return all outcomes with their raw data as JSON."""
    return json.dumps({name: asdict(outcome) for name, outcome in outcomes}, indent=1)


def _verdict(figure: Figure) -> str:
    return {True: "ok", False: "MISS", None: ""}[figure.holds]


@contextmanager
def bench_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="closloop-bench-") as name:
        yield Path(name)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for what is started inside this context."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def busy_cpus(count: int) -> Iterator[None]:
    """Keep CPUs busy while the context lasts, by `count` programs of normal priority."""
    argv = [sys.executable, "-IS", "-c", "while True: pass"]
    programs = [subprocess.Popen(argv) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def websearch(duration_ns: int) -> tuple[PoissonSpec]:
    """Return the usual traffic: WebSearch at 60 % load."""
    return (PoissonSpec("WebSearch", 0.6, 0, duration_ns),)


def bench_trial(
    traffic: tuple[PatternSpec, ...],
    duration_ns: int,
    *,
    testbed: str = "graphcc",
    backend: str = "fluid",
    tuner: TunerSpec = SECN1,
    **further_fields: Any,
) -> TrialSpec:
    """Return a trial with the benchmarks' defaults; `further_fields` are fields of TrialSpec."""
    fields = {
        "campaign": "bench",
        "seed": 1,
        "repeat": 1,
        "drain_ns": 1_000 * MILLISECOND,
        **further_fields,
    }
    return TrialSpec(
        testbed=testbed,
        backend=backend,
        tuner=tuner,
        traffic=traffic,
        duration_ns=duration_ns,
        **fields,
    )


@dataclass(frozen=True)
class Run:
    """A trial that was run, with its record and the wall time that it took."""

    trial: TrialSpec
    testbed: Testbed
    schedule: Schedule
    record: TrialRecord
    wall_s: float


def run_trial(
    testbed_name: str,
    traffic: tuple[PatternSpec, ...],
    tuner: TunerSpec,
    *,
    duration_ns: int,
    sample_period_ns: int = 100_000,
    flow_table: bool = False,
    backend: Literal["emulated", "simulated"] = "emulated",
    engine: str = "",
    **further_fields: Any,
) -> Run:
    """Run one trial. With `flow_table`, the emulated fabric keeps flow tables, which nobody reads.

    `engine` is one of `core.engines`; "" is the one in which `closloop run` would run the trial.
    `further_fields` are further fields of TrialSpec. Raises what the backend raises.
    """
    testbed = load_testbed(testbed_name)
    spec_fields = {"fabric": CLOSLOOP, "action_period_ns": sample_period_ns, **further_fields}
    trial = bench_trial(
        traffic,
        duration_ns,
        testbed=testbed_name,
        backend=backend,
        tuner=tuner,
        sample_period_ns=sample_period_ns,
        **spec_fields,
    )
    schedule = make_schedule(trial, testbed)
    begin = time.monotonic()
    runner: Backend = EmulatedBackend(flow_table=True)
    if not flow_table:
        choice = backend_factory.engine_for([trial], {testbed_name: testbed}, engine)
        runner = backend_factory.backend(backend, engine=choice.engine)
    with bench_folder() as folder:
        record = runner.run(TrialRun(trial, testbed, schedule, folder))
    return Run(trial, testbed, schedule, record, time.monotonic() - begin)
