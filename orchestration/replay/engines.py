"""The engine in which a finished trial is run again: the one in which it ran, of the same version.

Only there does it repeat to the bit.
"""

from __future__ import annotations

from orchestration.backends.emulated.engines import packet_engine_version
from orchestration.core.capabilities import capabilities
from orchestration.core.engines import KERNEL, PROCESS, engine_of, in_words
from orchestration.core.errors import InputError
from orchestration.results.reader import TrialResult


def engine_of_replay(parent: TrialResult | None, backend: str, requested: str) -> str:
    """Return the engine of a replay as the option --in would name it; "" leaves the choice open.

    It is the one that was `requested`, or else the parent's. Raises InputError if nothing was
    requested, and the parent ran in another version of the packet engine.
    """
    if requested or parent is None or capabilities(backend).in_process is None:
        return requested
    check_version(parent)
    return KERNEL if engine_of(parent.facts)[0] == KERNEL else ""


def engine_to_repeat(trial: TrialResult, requested: str) -> str:
    """Return the engine in which a trial repeats to the bit, as the option --in would name it.

    Raises InputError if another one was `requested`.
    """
    engine = engine_of(trial.facts)[0]
    if engine and requested not in ("", engine):
        what = f"the trial ran {in_words(engine)}, and another engine does not repeat it"
        raise InputError.single(f"--in {requested}", what, "leave it out")
    return requested or engine


def check_version(trial: TrialResult) -> None:
    """Raise InputError if a trial ran in another version of the packet engine than this one."""
    engine, version = engine_of(trial.facts)
    if engine == PROCESS and version != packet_engine_version():
        raise InputError.single(
            str(trial.folder),
            f"it ran in the packet engine {version}, and this closloop has "
            f"{packet_engine_version()}: it may not repeat to the bit",
            f"replay it in this one, and ask about the replay: `closloop replay {trial.folder} "
            f"--in {PROCESS}`",
        )
