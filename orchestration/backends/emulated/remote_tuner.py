"""Lets the loop in the guest ask a tuner in the host's process, while virtual time stands still.

If a process of the guest just waited for the host, the guest would be idle, and virtual time would
jump to the next timer. So the guest writes its question to a file, announces it on its console, and
then *spins*: it lists a folder on the host until the answer is there. A successful listing costs no
virtual time, and it reaches the host each time (hostfs caches the attributes of single files). A
file appears complete, by a rename, and each name is used only once, so that no cached file can be
mistaken for it.

    question-N    what the loop asks: `reset`, or `act` with an observation
    answer-N      the setup or the action of the host's tuner
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.core.codec import pack_observation, pack_setup, unpack_observation, unpack_setup
from orchestration.core.files import write_whole
from orchestration.core.ports import Tuner
from orchestration.core.records import Action, Observation, Setup, TrialRecord
from tuners.base import BaseTuner

if TYPE_CHECKING:
    from orchestration.core.topology import Testbed

# The key of a question in the guest's message; the value is the kind of question.
QUESTION = "asks"
_EXCHANGE = "exchange"


class TunerClient(BaseTuner):
    """Represents the host's tuner in the guest. `send` sends the host a message.

    With `poll_s`, in real time, it sleeps for so long between two looks for the answer instead of
    spinning. It has no facts and no trace: the host's tuner has them.
    """

    def __init__(
        self,
        folder: Path,
        observes: Sequence[str],
        send: Callable[..., None],
        poll_s: float = 0.0,
    ) -> None:
        self._poll_s = poll_s
        self.observes = tuple(observes)
        self._folder = str(folder / _EXCHANGE)
        self._send = send
        self._questions = 0

    def reset(self, testbed: Testbed, seed: int) -> Setup:
        """Ask the host, which knows the testbed and the seed, for the initial setup."""
        return self._ask("reset", b"")

    def act(self, observation: Observation) -> Action:
        """Ask the host for an action."""
        return self._ask("act", pack_observation(observation)).action

    def _ask(self, kind: str, data: bytes) -> Setup:
        self._questions += 1
        write_whole(f"{self._folder}/question-{self._questions}", data, 0o600)
        self._send(**{QUESTION: kind}, number=self._questions)
        name = f"answer-{self._questions}"
        while name not in os.listdir(self._folder):
            if self._poll_s:
                time.sleep(self._poll_s)
        path = f"{self._folder}/{name}"
        answer = _read(path)
        os.unlink(path)
        return unpack_setup(answer)


class TunerServer:
    """Answers a guest's questions with `tuner`. `answer` does not catch the tuner's exceptions."""

    def __init__(self, folder: Path, tuner: Tuner, testbed: Testbed, seed: int) -> None:
        self._folder = folder / _EXCHANGE
        self._folder.mkdir()
        self._tuner = tuner
        self._testbed = testbed
        self._seed = seed

    def answer(self, message: Mapping[str, Any]) -> None:
        """Answer the question in a guest's message; ignore any other message."""
        if QUESTION not in message:
            return
        question = self._folder / f"question-{message['number']}"
        data = _read(str(question))
        question.unlink()
        if message[QUESTION] == "reset":
            answer = self._tuner.reset(self._testbed, self._seed)
        else:
            answer = Setup(self._tuner.act(unpack_observation(data)))
        write_whole(str(self._folder / f"answer-{message['number']}"), pack_setup(answer), 0o600)

    def complete(self, record: TrialRecord) -> TrialRecord:
        """Return the record with the tuner's facts and trace."""
        facts = {**record.facts, "tuner": dict(self._tuner.facts())}
        return replace(record, facts=facts, trace=self._tuner.trace())


def _read(path: str) -> bytes:
    """Read a file without `open`, whose check for a terminal fails, and so takes virtual time."""
    fd = os.open(path, os.O_RDONLY)
    chunks = []
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
    os.close(fd)
    return b"".join(chunks)
