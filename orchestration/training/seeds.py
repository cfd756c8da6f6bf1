"""Trains a network from several seeds side by side, each in a process and a folder of its own.

The processes are spawned, not forked, because of torch, which each of them imports. Trainings do
not depend on each other, so neither their order nor their number changes a network. They only share
the figures of the placebo and of the static settings on the held-out trials, which are played
before the first training.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from orchestration.core.errors import ClosloopError, Interrupted, TrialError
from orchestration.core.machine import deferred_signals
from orchestration.run.executors import THIS_MACHINE, Executor
from orchestration.run.worker import die_with
from orchestration.training.episodes import EpisodePool
from orchestration.training.evaluation import (
    FILE,
    Evaluator,
    HeldOut,
    backend_for,
    log_slowdown_of,
)
from orchestration.training.files import Round, check_folder
from orchestration.training.outcome import Result, read_result
from orchestration.training.request import TrainRequest
from orchestration.training.train import train

_TICK_S = 0.5


@dataclass(frozen=True)
class Listener:
    """What trainings report, each by its name: rounds, with the budget; and notes."""

    round: Callable[[str, Round, int], None]
    note: Callable[[str, str], None]


@dataclass
class _SeedProcess:
    """A training that runs in a process of its own, and the pipe with its messages."""

    name: str
    process: BaseProcess
    pipe: Connection


def train_seeds(
    requests: Mapping[str, TrainRequest],
    folder: Path,
    jobs: int,
    listener: Listener,
    *,
    fresh: bool = False,
    executor: Executor = THIS_MACHINE,
) -> dict[str, Result]:
    """Train every request in its folder below `folder`, and return the results by name.

    The requests have a rule, and differ in their seeds only. `jobs` cores are used. Episodes are
    played on `executor`; learning is on this machine. Called again, it resumes. Call it from the
    main thread.

    Raises:
        InputError: a scenario is wrong, or a folder holds another training.
        TrialError: trainings failed; the others were finished.
        Interrupted: SIGINT or SIGTERM came.
    """
    for name, request in requests.items():
        check_folder(folder / name, request.input_files, fresh=fresh)
    if not _play_references(next(iter(requests.values())), folder, jobs, listener, executor):
        raise Interrupted("interrupted before the first training", "the same command resumes it")
    side_by_side = max(1, min(len(requests), jobs))
    jobs_each = max(1, jobs // side_by_side)
    waiting = list(requests.items())
    running: list[_SeedProcess] = []
    failed: dict[str, ClosloopError] = {}

    def interrupt() -> None:
        for training in running:
            if training.process.is_alive():
                os.kill(training.process.pid or 0, signal.SIGTERM)

    with deferred_signals(interrupt) as signals:
        interrupted = False
        while running or (waiting and not signals):
            while waiting and len(running) < side_by_side and not signals:
                running.append(_start(*waiting.pop(0), folder, jobs_each, fresh, executor))
            if signals and not interrupted:
                interrupted = True
                interrupt()
            for training in _pass_on_messages(running, listener, failed):
                training.process.join()
                running.remove(training)
    if signals:
        raise Interrupted("interrupted", "the same command resumes the trainings")
    if failed:
        name, error = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise TrialError(problem.at(f"{name}{more}") for problem in error.problems)
    return {name: read_result(folder / name) for name in requests}


def _play_references(
    request: TrainRequest, folder: Path, jobs: int, listener: Listener, executor: Executor
) -> bool:
    """Play the placebo and the static settings; return False if interrupted."""
    if request.rule is None:
        raise ValueError("trainings from several seeds need a rule: give them one")
    held_out = HeldOut(request, request.rule)
    backend = backend_for(request)
    first = held_out.trials(request.rule.placebo, range(1, 2))
    executor.check(backend, held_out.testbed, jobs, first)
    pool = EpisodePool(backend, jobs, log_slowdown_of, executor)
    work = folder / "work"
    with deferred_signals(pool.kill) as signals:
        evaluator = Evaluator(held_out, folder / FILE, work, pool, lambda: not signals)
        try:
            return evaluator.prepare(lambda text: listener.note("", text))
        finally:
            pool.close()
            shutil.rmtree(work, ignore_errors=True)


def _start(
    name: str, request: TrainRequest, folder: Path, jobs: int, fresh: bool, executor: Executor
) -> _SeedProcess:
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_train_in_process,
        args=(request, folder, name, jobs, fresh, executor, sender, os.getpid()),
    )
    process.start()
    sender.close()
    return _SeedProcess(name, process, receiver)


def _train_in_process(
    request: TrainRequest,
    folder: Path,
    name: str,
    jobs: int,
    fresh: bool,
    executor: Executor,
    pipe: Connection,
    parent: int,
) -> None:
    """Train one request in this process, which process `parent` spawned for it."""
    die_with(parent)
    os.setsid()  # so that Ctrl-C on a terminal goes to the parent only, which passes it on once
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        train(
            request,
            backend_for(request),
            folder / name,
            jobs,
            lambda round_, total: pipe.send((round_, total)),
            fresh=fresh,
            references=folder / FILE,
            note=pipe.send,
            executor=executor,
        )
    except Interrupted:
        pass
    except ClosloopError as error:
        pipe.send(TrialError(error.problems))
    pipe.close()


def _pass_on_messages(
    running: list[_SeedProcess], listener: Listener, failed: dict[str, ClosloopError]
) -> list[_SeedProcess]:
    """Wait a moment for messages, and pass them on; return the trainings that have ended."""
    ended = []
    ready = set(wait([training.pipe for training in running], _TICK_S))
    for training in running:
        if training.pipe not in ready:
            continue
        try:
            message = training.pipe.recv()
        except (EOFError, OSError):
            ended.append(training)
            training.process.join()
            if training.process.exitcode and training.name not in failed:
                failed[training.name] = TrialError(
                    f"its process ended with exit code {training.process.exitcode}",
                    "give the same command again: it resumes; if memory is short, use --jobs 1",
                )
            continue
        if isinstance(message, ClosloopError):
            failed[training.name] = message
        elif isinstance(message, str):
            listener.note(training.name, message)
        else:
            listener.round(training.name, *message)
    return ended
