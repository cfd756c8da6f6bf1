"""Who observes a trial's loop where it runs in the worker's process: archive, view and sink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from collectors.live import LiveObserver
from collectors.recorder import Recorder
from collectors.sinks.spooling import spooled
from collectors.tee import Tee
from inventory.topology import Testbed
from orchestration.model.trial import TrialSpec


def observers(
    recorder: Recorder,
    folder: Path,
    trial: TrialSpec,
    testbed: Testbed,
    flows_done: Callable[[], int] = lambda: -1,
) -> Tee:
    """Return the recorder, the live view and the sinks that are asked for in `folder`, as one.

    `folder` is the trial's for temporary files. `flows_done` says how many flows have ended, -1
    where that is known at the end only.
    """
    live = LiveObserver(folder, trial, flows_done)
    return Tee(recorder, live, *spooled(folder, testbed))
