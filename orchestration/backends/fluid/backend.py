"""The `fluid` backend: any trial, on any machine, in a fraction of a second, always the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectors.observers import observers
from collectors.recorder import Recorder
from inventory.topology import Testbed
from orchestration.backends.fluid.rig import STEP_NS, FluidRig
from orchestration.loop import run_loop
from orchestration.model.errors import NotReadyError, TrialError
from orchestration.model.ports import Progress, Tuner
from orchestration.model.records import Schedule, TrialRecord
from orchestration.model.trial import TrialSpec, TunerSpec
from tuners import registry


class FluidBackend:
    """Runs trials on the fluid model. Nothing outside the process is touched."""

    name = "fluid"

    def check(self, testbed: Testbed, jobs: int, tuners: Sequence[TunerSpec] = ()) -> None:
        """Accept every testbed with one queue a port: the model needs nothing of the machine."""
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

        Raises TrialError for a congestion control that the model has not, NotReadyError as `check`.
        """
        self.check(testbed, 1)
        if trial.host.congestion_control != "dctcp":
            raise TrialError(
                f"the fluid backend has no {trial.host.congestion_control!r}, only dctcp",
                "use the emulated backend, or set host.congestion_control to dctcp",
            )
        tuner = tuner or registry.create(trial.tuner)
        rig = FluidRig(trial, testbed, schedule, flow_table=tuner.observes_flows)
        recorder = Recorder()
        watching = observers(recorder, folder, trial, testbed, rig.flows_done)
        said = run_loop(rig, tuner, testbed, trial, watching, progress)
        return TrialRecord(
            flows=rig.flows(),
            ports=recorder.ports(len(testbed.queues)),
            actions=recorder.actions(),
            hosts=rig.hosts(),
            events=rig.events(),
            facts={"clock": "virtual", "model": "fluid", "step_ns": STEP_NS, **said},
            trace=tuner.trace(),
        )
