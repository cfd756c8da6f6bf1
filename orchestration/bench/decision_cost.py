"""Measures the time of a decision: a tuner's, and a learned congestion control's in each form.

For a congestion control as C or BPF, a loop draws a new state of a flow in each round; the time of
the same loop without a decision is subtracted. BPF runs in a guest, whose clock stands still while
it computes: so the time that the guest spends on a CPU between two of its messages is measured
outside.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from collectors.bpf.policy import CONTEXT, HEADERS, PolicyError, policy_object
from inventory.files import load_testbed
from inventory.generators import Cable, fat_tree
from orchestration.backends.emulated.bpf_programs import CHUNK, load_in_guest
from orchestration.bench.outcome import Figure, Outcome, at_most, bench_folder
from orchestration.core.congestion import congestion_control
from orchestration.core.errors import TrialError
from orchestration.core.topology import Testbed
from orchestration.core.trial import TunerSpec
from orchestration.policies.compile import build_library
from orchestration.policies.render_c import render_policy
from orchestration.policies.trees import ONE, IntegerTrees, Settings, Tree
from tuners import registry
from tuners.contract import readings

_RULES = ("amt", "qaecn", "random")
_LEARNED = ("acc", "pet", "graphcc")
# At 16 pods DRLet's first layer alone is 16,256 x 16,256: 2 GB as it is multiplied here.
_PODS = {"drlet": (4, 6, 8, 10, 12), "drlet-local": (4, 8, 12, 16)}
_MAX_MS = {"graphcc": 1.0, "drlet on a fat tree, k = 8": 2.0}
_DECISIONS, _WARM_UPS = 60, 10


def decision_time() -> Outcome:
    """Wall time of one decision for all queues, or all flowlet timeouts, by tuner and fabric."""
    learned = find_spec("torch") is not None
    figures, data = [], {}
    for fabric in ("graphcc", "acc"):
        for name in (*_RULES, *(_LEARNED if learned else ())):
            times_ms = _times_ms(name, load_testbed(fabric), learned=name in _LEARNED)
            label = f"{name} on {fabric}"
            figures.append(_time_figure(label, times_ms, _MAX_MS.get(fabric)))
            data[label] = times_ms
    for name, sizes in _PODS.items() if learned else ():
        for pods in sizes:
            times_ms = _times_ms(name, _fat_tree(pods), learned=True)
            label = f"{name} on a fat tree, k = {pods}"
            figures.append(_time_figure(label, times_ms, _MAX_MS.get(label)))
            data[label] = times_ms
    notes = [
        "from a reading to the change, reading and applying not counted; readings are of a fabric "
        "that gets ever busier",
        "networks are untrained: what they have learned does not change how long they take",
        "figure 18 of DRLet's paper is of the whole control loop with a K80 GPU: milliseconds",
    ]
    if not learned:
        notes[1:] = ["no learned tuners: PyTorch is not installed (pip install 'closloop[learn]')"]
    return Outcome(
        f"A decision: medians of {_DECISIONS}, one core", tuple(figures), tuple(notes), data
    )


def _time_figure(label: str, times_ms: Sequence[float], limit_ms: float | None) -> Figure:
    median = statistics.median(times_ms)
    return Figure(
        label,
        f"{median:.2f} ms (least {min(times_ms):.2f}, most {max(times_ms):.2f})",
        "" if limit_ms is None else f"{limit_ms:g} ms",
        None if limit_ms is None else median <= limit_ms,
    )


def _fat_tree(pods: int) -> Testbed:
    cable = Cable(10_000_000_000, 1_000)
    devices, links = fat_tree(k=pods, host_cable=cable, aggregation_cable=cable, core_cable=cable)
    return Testbed.build(f"k{pods}", devices, links, mtu_bytes=1500, buffer_bytes=1_500_000)


def _times_ms(name: str, testbed: Testbed, *, learned: bool) -> list[float]:
    with bench_folder() as folder:
        spec = TunerSpec(name)
        if learned:
            spec = TunerSpec(name, {"checkpoint": str(_untrained(name, testbed, folder))})
        tuner = registry.create(spec)
    readings_seen = readings(testbed, tuner, tuner.reset(testbed, 1), _WARM_UPS + _DECISIONS)
    times_ms = []
    for observation in readings_seen:
        begin = time.perf_counter()
        tuner.act(observation)
        times_ms.append(1e3 * (time.perf_counter() - begin))
    return times_ms[_WARM_UPS:]


def _untrained(name: str, testbed: Testbed, folder: Path) -> Path:
    """Write a checkpoint of an untrained learned tuner."""
    from orchestration.training.request import make_learner
    from tuners.learning.checkpoint import save

    learner = make_learner(name, 1, testbed, {})
    path = folder / f"{name}.safetensors"
    save(path, learner.parameters(), {"tuner": name, "architecture": learner.architecture()})
    return path


# The largest trees of the paper: Fuhrer et al., HPSR 2023, section VI-A.
_TREES, _DEPTH, _HISTORY = 10, 4, 3
_C_NS, _BPF_NS = 50.0, 400.0
_ROUNDS_C, _ROUNDS_BPF, _REPEATS = 200_000, 16, 7
_PARTS = ("the loop", "the model", "a whole decision")
_LOOP = Path(__file__).with_name("decision_loop.c.in")


def decision_cost() -> Outcome:
    """CPU time of one decision of RL-CC's models as C, as BPF and in CatBoost."""
    model = paper_sized_trees()
    figures: list[Figure] = []
    notes = [
        "time on a CPU, which whatever else the machine does lengthens: the least of "
        f"{_REPEATS} times; a loop without a decision is taken off",
        f"trees: {_TREES} of depth {_DEPTH} on {_HISTORY} observations, drawn by a fixed seed",
    ]
    data: dict[str, Any] = {}
    for name, text in model_sources(model).items():
        limits = (_C_NS, _BPF_NS) if name == "trees" else (None, None)
        # a network as BPF has so many instructions that 16 copies of it are too long for one
        # program
        rounds = _ROUNDS_BPF if name == "trees" else 1
        for form, measure, limit in (
            ("C", c_ns, limits[0]),
            ("BPF", partial(_bpf_ns, rounds=rounds), limits[1]),
        ):
            try:
                parts = parts_ns(f"#define BPF_ROUNDS {rounds}\n{text}", measure)
            except (PolicyError, TrialError) as error:
                notes.append(f"{name} as {form}: {error.message}")
                continue
            data[f"{name} {form}"] = parts
            for part, value in parts.items():
                figures.append(_figure(f"{name} as {form}, {part}", value, limit, part))
    figures += _catboost_ns()
    return Outcome("One decision of RL-CC's models", tuple(figures), tuple(notes), data)


def paper_sized_trees(seed: int = 1) -> IntegerTrees:
    """Return trees of the paper's size, with random splits and leaves."""
    rng = np.random.default_rng(seed)
    trees = []
    for _ in range(_TREES):
        features = rng.integers(0, 2 * _HISTORY, _DEPTH)
        centre = np.where(features % 2, ONE, -ONE // 2)
        trees.append(
            Tree(
                tuple(features.tolist()),
                tuple((centre + rng.integers(-ONE // 8, ONE // 8, _DEPTH)).tolist()),
                tuple((ONE // _TREES + rng.integers(-600, 600, 1 << _DEPTH)).tolist()),
            )
        )
    return IntegerTrees(Settings(_HISTORY, 52_429, 78_643), tuple(trees))


def model_sources(model: IntegerTrees) -> dict[str, str]:
    """Return the C of the trees, and of the networks that there are, without the CL_POLICY line."""
    sources = {"trees": render_policy(model, "bench")}
    for name in ("rlcc_mlp", "rlcc_lstm"):
        path = HEADERS / f"policy_{name}.c"
        if path.exists():
            sources[name] = path.read_text()
    return {
        name: "\n".join(line for line in text.splitlines() if not line.startswith("CL_POLICY("))
        for name, text in sources.items()
    }


def parts_ns(text: str, measure: Callable[[Path], float]) -> dict[str, float]:
    """Return the time in ns of the model and of a whole decision, without the loop around them.

    `measure` returns the time of one round of the policy in a C file. Raises TrialError if a part
    takes no time.
    """
    loop = _LOOP.read_text()
    rounds_ns = []
    with tempfile.TemporaryDirectory(prefix="closloop-cost-") as folder:
        for part in range(len(_PARTS)):
            path = Path(folder, f"bench{part}.c")
            head = f"#define PART {part}\n#define happen bench_decide\n"
            path.write_text(f"{head}{text}\n{loop}")
            rounds_ns.append(measure(path))
    loop_ns, *others_ns = rounds_ns
    parts = {name: ns - loop_ns for name, ns in zip(_PARTS[1:], others_ns, strict=True)}
    if min(parts.values()) <= 0:
        raise TrialError(
            "a decision took no time", "the loop around it did not run: see its source"
        )
    return parts


def _contexts(count: int, rounds: int) -> np.ndarray:
    contexts = np.zeros(count, dtype=CONTEXT)
    contexts["line_bps"] = contexts["rate_bps"] = 100_000_000_000
    values = congestion_control("rlcc").defaults | {"base_rtt": 10_000}
    contexts["parameters"][:, : len(values) + 1] = *values.values(), rounds
    return contexts


def c_ns(source: Path, rounds: int = _ROUNDS_C) -> float:
    """Return the ns per round of a policy compiled as a library: the minimum of several runs."""
    library = source.with_suffix(".so")
    build_library(source, library, "-DBENCH")
    run = ctypes.CDLL(str(library)).bench_happen
    context = _contexts(1, rounds)
    times = []
    for _ in range(_REPEATS + 1):  # the first one warms up
        begin = time.thread_time_ns()
        run(context.ctypes.data_as(ctypes.c_void_p))
        times.append((time.thread_time_ns() - begin) / rounds)
    return min(times[1:])


def _bpf_ns(source: Path, rounds: int) -> float:
    cpu_times: list[tuple[int, int]] = []

    def listen(message: dict[str, Any]) -> None:
        if "contexts" in message:
            cpu_times.append((_children_ns(os.getpid()), message["contexts"]))

    load_in_guest(policy_object(source), _contexts((_REPEATS + 1) * CHUNK, rounds), listen)
    times = [(now - before) / (count * rounds) for (before, _), (now, count) in pairwise(cpu_times)]
    return min(times[1:])


def _children_ns(pid: int) -> int:
    """Return the CPU time in ns of the processes below a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            total += int(Path(f"/proc/{child}/schedstat").read_text().split()[0])
            total += _children_ns(int(child))
    return total


def _figure(label: str, value: float, limit: float | None, part: str) -> Figure:
    if limit is None or part != _PARTS[1]:
        return Figure(label, f"{value:.0f} ns")
    return at_most(label, value, limit, 0, " ns")


def _catboost_ns() -> list[Figure]:
    """Return the time that CatBoost's own predictor takes for trees of the same size."""
    if find_spec("catboost") is None:
        return [Figure("CatBoost's predictor", "not installed: pip install 'closloop[learn]'")]
    from catboost import CatBoostRegressor

    rng = np.random.default_rng(1)
    readings_seen = rng.normal(size=(20_000, 2 * _HISTORY))
    model = CatBoostRegressor(
        iterations=_TREES, depth=_DEPTH, verbose=0, allow_writing_files=False, thread_count=1
    )
    model.fit(readings_seen, np.tanh(readings_seen).sum(axis=1))
    figures = []
    for label, rows, rounds in (("one at a time", 1, 500), ("20,000 at once", 20_000, 5)):
        times = []
        for _ in range(rounds):
            begin = time.perf_counter_ns()
            model.predict(readings_seen[:rows], thread_count=1)
            times.append((time.perf_counter_ns() - begin) / rows)
        value = statistics.median(times)
        figures.append(Figure(f"CatBoost's predictor, {label}", f"{value:,.0f} ns"))
    return figures
