"""A tuner in the host's process that the loop in the guest asks, while virtual time stands still.

To the guest, a process that waits for the host is idle, and virtual time jumps to the next timer.
So the guest writes its question as a file, says so on its console, and then *spins*: it lists a
folder that lies on the host until the answer is there. Listing is a system call that succeeds,
which costs no virtual time, and that goes to the host each time (what hostfs says of one file is
cached). A file appears whole, by being renamed, and under a name that was never used before, so
that nothing cached can be taken for it.

    question-N    what the loop asks: `reset`, or `act` with an observation
    answer-N      the host's tuner's setup or action
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.model.codec import (
    pack_observation,
    pack_setup,
    unpack_observation,
    unpack_setup,
)
from orchestration.model.files import write_whole
from orchestration.model.ports import Tuner
from orchestration.model.records import Action, Observation, Setup, TrialRecord
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from inventory.topology import Testbed

# What a question is called in the guest's message, whose value is its kind.
ASKS = "asks"
_EXCHANGE = "exchange"


class AskingTuner(BaseTuner):
    """Stands for the host's tuner in the guest. `tell` sends the host a message.

    It has no facts and no trace: the host's has them.
    """

    def __init__(self, folder: Path, observes: Sequence[str], tell: Callable[..., None]) -> None:
        self.observes = tuple(observes)
        self._folder = str(folder / _EXCHANGE)
        self._tell = tell
        self._asked = 0

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Ask the host, which knows testbed and seed, what to start from."""
        return self._ask("reset", b"")

    def act(self, observation: Observation) -> Action:
        """Ask the host what to change."""
        return self._ask("act", pack_observation(observation)).action

    def _ask(self, kind: str, data: bytes) -> Setup:
        self._asked += 1
        write_whole(f"{self._folder}/question-{self._asked}", data, 0o600)
        self._tell(**{ASKS: kind}, number=self._asked)
        answer = f"answer-{self._asked}"
        while answer not in os.listdir(self._folder):
            pass
        path = f"{self._folder}/{answer}"
        answered = _read(path)
        os.unlink(path)
        return unpack_setup(answered)


class AnsweringTuner:
    """Answers what a guest asks of `tuner`. Errors of the tuner come out of `answer` unchanged."""

    def __init__(self, folder: Path, tuner: Tuner, testbed: Testbed, seed: int) -> None:
        self._folder = folder / _EXCHANGE
        self._folder.mkdir()
        self._tuner = tuner
        self._testbed = testbed
        self._seed = seed

    def answer(self, message: Mapping[str, Any]) -> None:
        """Take a question from the guest's console and answer it; ignore any other message."""
        if ASKS not in message:
            return
        question = self._folder / f"question-{message['number']}"
        data = _read(str(question))
        question.unlink()
        if message[ASKS] == "reset":
            answer = self._tuner.reset(self._testbed, self._seed)
        else:
            answer = Setup(self._tuner.act(unpack_observation(data)))
        write_whole(str(self._folder / f"answer-{message['number']}"), pack_setup(answer), 0o600)

    def complete(self, record: TrialRecord) -> TrialRecord:
        """Return the record with what the tuner has to say of the trial."""
        facts = {**record.facts, "tuner": dict(self._tuner.facts())}
        return replace(record, facts=facts, trace=self._tuner.trace())


def _read(path: str) -> bytes:
    """Read a file. `open` would ask whether it is a terminal: a call that fails costs time."""
    fd = os.open(path, os.O_RDONLY)
    chunks = []
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
    os.close(fd)
    return b"".join(chunks)
