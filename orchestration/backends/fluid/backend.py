"""The `fluid` backend: any trial, on any machine, in a fraction of a second, always the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestration.backends.fluid.rig import FluidRig
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.ports import Progress, Tuner
from orchestration.core.records import Schedule, TrialRecord
from orchestration.core.signals import wants_flow_table
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.session import run_trial
from tuners import registry


class FluidBackend:
    """Runs trials on the fluid model. Touches nothing outside the process."""

    name = "fluid"

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Accept every testbed with one queue a port: the model needs nothing from the machine."""
        if testbed.classes:
            raise NotReadyError(
                f"the fluid backend has one queue a port, testbed {testbed.name} has "
                f"{len(testbed.classes)} traffic classes",
                "use the emulated backend, or a testbed without 'classes'",
            )

    def run(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        folder: Path,
        progress: Progress,
        tuner: Tuner | None = None,
    ) -> TrialRecord:
        """Run one trial.

        Raises TrialError for a congestion control that the model lacks, NotReadyError as `check`
        does.
        """
        self.check(testbed, 1)
        if trial.host.congestion_control != "dctcp":
            raise TrialError(
                f"the fluid backend has no {trial.host.congestion_control!r}, only dctcp",
                "use the emulated backend, or set host.congestion_control to dctcp",
            )
        tuner = tuner or registry.create(trial.tuner)
        watches = wants_flow_table(tuner.observes)
        rig = FluidRig(trial, testbed, schedule, flow_table=watches)
        return run_trial(rig, tuner, trial, testbed, folder, progress)
