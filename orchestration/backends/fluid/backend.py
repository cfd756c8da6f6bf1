"""The `fluid` backend: runs trials on any machine in a fraction of a second, deterministically."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.backends.fluid.rig import FluidRig
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.ports import TrialRun
from orchestration.core.records import TrialRecord
from orchestration.core.signals import wants_flow_table
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec
from orchestration.session import run_trial
from tuners import registry


class FluidBackend:
    """Runs trials on the fluid model, inside this process: no kernel, no root, no other program."""

    name = "fluid"

    def check(self, testbed: Testbed, jobs: int, trials: Sequence[TrialSpec] = ()) -> None:
        """Raise NotReadyError for a testbed with traffic classes: the model has one queue a port.

        The model needs nothing from the machine.
        """
        if testbed.classes:
            raise NotReadyError(
                f"the fluid backend has one queue per port, and testbed {testbed.name} has "
                f"{len(testbed.classes)} traffic classes",
                "use the emulated backend, or a testbed without 'classes'",
            )

    def run(self, run: TrialRun) -> TrialRecord:
        """Run one trial.

        Raises TrialError for a congestion control that the model lacks, NotReadyError as `check`
        does.
        """
        self.check(run.testbed, 1)
        control = run.trial.host.congestion_control
        if control != "dctcp":
            raise TrialError(
                f"the fluid backend has no {control!r}, only dctcp",
                "use the emulated backend, or set host.congestion_control to dctcp",
            )
        tuner = run.tuner or registry.create(run.trial.tuner)
        rig = FluidRig(
            run.trial, run.testbed, run.schedule, flow_table=wants_flow_table(tuner.observes)
        )
        return run_trial(rig, tuner, run)
