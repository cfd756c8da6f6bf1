"""The engines in which a backend can run a trial, and which engine ran a finished one.

The emulated backend has two: closloop's packet engine, in the trial's own process, and the
virtual-time kernel. All trials of a campaign run in one engine. The engine is no field of a trial:
it is chosen from what the trials need (`backends.emulated.engines`), and is a fact of their
records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PROCESS, KERNEL = "process", "kernel"
ENGINES = (PROCESS, KERNEL)
_IN_WORDS = {PROCESS: "in the process", KERNEL: "in the virtual-time kernel"}

# The fact that names a trial's engine.
ENGINE = "engine"
# The fact with the version of each engine: a hash of what it is made of.
_HASH_FACTS = {PROCESS: "engine_hash", KERNEL: "kernel_hash"}


class EngineChoice(NamedTuple):
    """The engine of a campaign's trials, and why; both are "" if the backend has only one."""

    engine: str = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """Where the trials run and why, like "in the process: RoCE flows only"."""
        return f"{in_words(self.engine)}: {self.reason}" if self.engine else ""


# Of backends with one engine.
ONE_ENGINE = EngineChoice()


def in_words(engine: str) -> str:
    """Return where trials of an engine run, like "in the virtual-time kernel"."""
    return _IN_WORDS[engine]


def engine_of(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return a trial's engine and its version, by the facts of the trial's record.

    Records of earlier versions have the kernel's hash only. Both are "" for trials of other
    backends, and for those in real time.
    """
    engine = str(facts.get(ENGINE) or (KERNEL if _HASH_FACTS[KERNEL] in facts else ""))
    return engine, str(facts.get(_HASH_FACTS.get(engine, ""), ""))


def engine_facts(engine: str, version: str, **more: Any) -> dict[str, Any]:
    """Return the facts about an engine that a trial's record and the journal have."""
    return {ENGINE: engine, _HASH_FACTS[engine]: version, **more}
