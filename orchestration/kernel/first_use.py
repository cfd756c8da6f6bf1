"""Builds the kernel when a campaign first needs one, and says beforehand how long that takes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestration.core.builds import Build, BuildProgress
from orchestration.core.errors import Interrupted, NotReadyError
from orchestration.core.machine import sigterm_as_interrupt
from orchestration.core.problems import Problem
from orchestration.kernel.build import build_kernel, require_tools
from orchestration.kernel.cache import MANIFEST, find_kernel, kernel_folder

if TYPE_CHECKING:
    from orchestration.core.trial import TrialSpec

# Of compiling on all cores (docs/kernel.md), and of what goes on one after the other: fetching the
# source, unpacking it, linking.
_COMPILING_CORE_S = 270.0
_REST_S = 45.0


def kernel_to_build() -> tuple[Build, ...]:
    """Return how the kernel is built, () if there is one. Raises InputError as `find_kernel`."""
    if find_kernel() is not None:
        return ()
    return (Build("the virtual-time kernel", _expected_s(), _make, _problems()),)


def kernel_for(trials: Sequence[TrialSpec]) -> tuple[Build, ...]:
    """Return the same for trials of the emulated backend: in real time they need no kernel."""
    return () if all(trial.clock for trial in trials) else kernel_to_build()


def _make(progress: BuildProgress) -> None:
    """Build the kernel, on all cores. What a build that is interrupted made is removed."""
    cores = len(os.sched_getaffinity(0))
    try:
        with sigterm_as_interrupt():
            build_kernel(None, cores, False, progress)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted while the kernel was built; what there was of it is removed",
            "the same command builds it anew and goes on",
        ) from None


def _problems() -> tuple[Problem, ...]:
    try:
        require_tools()
    except NotReadyError as error:
        return tuple(error.problems)
    return ()


def _expected_s() -> float:
    """Return the wall time of a build: what the last one took here, if there was one."""
    last = ("", _COMPILING_CORE_S / len(os.sched_getaffinity(0)) + _REST_S)
    for path in kernel_folder().glob(f"*/{MANIFEST}"):
        with suppress(OSError, ValueError, TypeError, KeyError):
            manifest = json.loads(path.read_text())
            last = max(last, (str(manifest["built_at"]), float(manifest["build_s"])))
    return last[1]
