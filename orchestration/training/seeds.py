"""Trains a network from several seeds side by side, each in a process and a folder of its own.

A process is spawned and not forked: torch, which it imports, must not be in a process that forks.
Seeds do not know of each other, so neither their order nor their number changes a network. Only the
held-out figures of placebo and static settings are shared; they are played before the first seed.
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
from orchestration.run import backend_factory
from orchestration.run.executors import THIS_MACHINE, Executor
from orchestration.run.worker import die_with
from orchestration.training.episodes import Players
from orchestration.training.evaluation import FILE, Evaluator, HeldOut, figure_of
from orchestration.training.files import Round, check_folder
from orchestration.training.outcome import Result, read_result
from orchestration.training.request import Episodes, TrainRequest
from orchestration.training.train import train

_TICK_S = 0.5


@dataclass(frozen=True)
class Listener:
    """What is told of trainings by name: their rounds with the budget, and notes."""

    round: Callable[[str, Round, int], None]
    note: Callable[[str, str], None]


@dataclass
class _Running:
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
    place: Executor = THIS_MACHINE,
) -> dict[str, Result]:
    """Train every request in its folder below `folder`, and return the results by name.

    The requests differ in their seeds only and have a rule; `jobs` cores are used. Episodes are
    played at a `place`, which each seed's process is given. The same call goes on where it was.
    Call it from the main thread.

    Raises:
        InputError: a scenario is wrong, or a folder holds another training.
        TrialError: trainings failed; the others were finished.
        Interrupted: SIGINT or SIGTERM came.
    """
    for name, request in requests.items():
        check_folder(folder / name, request.reads, fresh=fresh)
    if not _play_references(next(iter(requests.values())), folder, jobs, listener, place):
        raise Interrupted(
            "interrupted before the first training", "the same command goes on from here"
        )
    side_by_side = max(1, min(len(requests), jobs))
    each = max(1, jobs // side_by_side)
    waiting = list(requests.items())
    running: list[_Running] = []
    failed: dict[str, ClosloopError] = {}

    def tell(number: signal.Signals) -> None:
        for one in running:
            if one.process.is_alive():
                os.kill(one.process.pid or 0, number)

    with deferred_signals(lambda: tell(signal.SIGTERM)) as signals:
        told = False
        while running or (waiting and not signals):
            while waiting and len(running) < side_by_side and not signals:
                running.append(_start(*waiting.pop(0), folder, each, fresh, place))
            if signals and not told:
                told = True
                tell(signal.SIGTERM)
            for one in _heard(running, listener, failed):
                one.process.join()
                running.remove(one)
    if signals:
        raise Interrupted("interrupted", "the same command goes on from here")
    if failed:
        name, error = next(iter(failed.items()))
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise TrialError(problem.at(f"{name}{more}") for problem in error.problems)
    return {name: read_result(folder / name) for name in requests}


def _play_references(
    request: TrainRequest, folder: Path, jobs: int, listener: Listener, place: Executor
) -> bool:
    """Play placebo and static settings; return whether that was not interrupted."""
    if request.rule is None:
        raise ValueError("trainings from several seeds have a rule: give them one")
    held_out = HeldOut(request, request.rule)
    backend = backend_factory.backend(Episodes(request).backend)
    first = held_out.trials(request.rule.placebo, range(1, 2))
    place.check(backend, held_out.testbed, jobs, first)
    players = Players(backend, jobs, figure_of, place)
    work = folder / "work"
    with deferred_signals(players.kill) as signals:
        judge = Evaluator(held_out, folder / FILE, work, players, lambda: not signals)
        try:
            return judge.prepare(lambda text: listener.note("", text))
        finally:
            players.close()
            shutil.rmtree(work, ignore_errors=True)


def _start(
    name: str, request: TrainRequest, folder: Path, jobs: int, fresh: bool, place: Executor
) -> _Running:
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_one, args=(request, folder, name, jobs, fresh, place, sender, os.getpid())
    )
    process.start()
    sender.close()
    return _Running(name, process, receiver)


def _one(
    request: TrainRequest,
    folder: Path,
    name: str,
    jobs: int,
    fresh: bool,
    place: Executor,
    pipe: Connection,
    parent: int,
) -> None:
    """Train one request in this process, which process `parent` spawned for it."""
    die_with(parent)
    os.setsid()  # Ctrl-C on a terminal does not come here: the parent passes it on, once
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        train(
            request,
            backend_factory.backend(Episodes(request).backend),
            folder / name,
            jobs,
            lambda round_, total: pipe.send((round_, total)),
            fresh=fresh,
            references=folder / FILE,
            note=pipe.send,
            place=place,
        )
    except Interrupted:
        pass
    except ClosloopError as error:
        pipe.send(TrialError(error.problems))
    pipe.close()


def _heard(
    running: list[_Running], listener: Listener, failed: dict[str, ClosloopError]
) -> list[_Running]:
    """Pass on what trainings say within a moment, and return those that ended."""
    ended = []
    ready = set(wait([one.pipe for one in running], _TICK_S))
    for one in running:
        if one.pipe not in ready:
            continue
        try:
            said = one.pipe.recv()
        except (EOFError, OSError):
            ended.append(one)
            one.process.join()
            if one.process.exitcode and one.name not in failed:
                failed[one.name] = TrialError(
                    f"its process ended with {one.process.exitcode}",
                    "give the same command again: it goes on; with less memory use --jobs 1",
                )
            continue
        if isinstance(said, ClosloopError):
            failed[one.name] = said
        elif isinstance(said, str):
            listener.note(one.name, said)
        else:
            listener.round(one.name, *said)
    return ended
