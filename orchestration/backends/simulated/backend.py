"""The simulated backend: one trial is one ns-3 program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from collectors.observers import observers
from collectors.recorder import Recorder
from inventory.topology import Testbed
from orchestration.backends.linux import TSQ_LIMIT_BYTES
from orchestration.backends.simulated.job import check_supported
from orchestration.backends.simulated.process import Simulation
from orchestration.backends.simulated.program import require_program
from orchestration.backends.simulated.rig import SimulatedRig
from orchestration.loop import run_loop
from orchestration.model.ports import Progress, Tuner
from orchestration.model.records import Schedule, TrialRecord
from orchestration.model.trial import TrialSpec, TunerSpec
from tuners import registry


class SimulatedBackend:
    """Runs trials in ns-3, each in a process of its own."""

    name = "simulated"

    def check(self, testbed: Testbed, jobs: int, tuners: Sequence[TunerSpec] = ()) -> None:
        """Compile the program if it is not yet; raise NotReadyError if that is not possible.

        Raises InputError for a testbed that does not fit in its addresses.
        """
        check_supported(testbed)
        require_program()

    def run(
        self,
        trial: TrialSpec,
        testbed: Testbed,
        schedule: Schedule,
        folder: Path,
        progress: Progress,
        tuner: Tuner | None = None,
    ) -> TrialRecord:
        """Run one trial; raise TrialError, with what ns-3 said, if it fails."""
        check_supported(testbed)
        program = require_program()
        tuner = tuner or registry.create(trial.tuner)
        recorder = Recorder()
        begin_s = time.monotonic()
        with Simulation(program, folder) as simulation:
            rig = SimulatedRig(
                simulation, trial, testbed, schedule, flow_table=tuner.observes_flows
            )
            built_s = time.monotonic()
            watching = observers(recorder, folder, trial, testbed, rig.flows_ended)
            said = run_loop(rig, tuner, testbed, trial, watching, progress)
            run_s = round(time.monotonic() - built_s, 3)
            flows, host_packets, events = rig.outcome()
        ports = recorder.ports(len(testbed.queues))
        switched = int(ports.tx_packets[-1].sum()) if len(ports.t_ns) else 0
        return TrialRecord(
            flows=flows,
            ports=ports,
            actions=recorder.actions(),
            hosts=rig.hosts(),
            events=tuple(rig.events),
            facts={
                "clock": "virtual",
                "model": f"ns-3 {program.ns3_version}",
                "program_hash": program.hash,
                "offloads_on": [],
                "tcp": _tcp_facts(trial),
                "qdiscs": {"host": "tbf > fq", "switch": "tbf > red per queue"},
                "red": {"Linux_RED_on": "the instantaneous queue"},
                "end_ns": rig.now_ns(),
                "packet_hops": switched + host_packets,
                "events": events,
                "run_wall_s": run_s,
                "stages_s": {"build": round(built_s - begin_s, 3), "run": run_s},
                **said,
            },
            trace=tuner.trace(),
        )


def _tcp_facts(trial: TrialSpec) -> dict[str, int | str]:
    """Return what the hosts' TCP was set to."""
    return {
        "congestion_control": trial.host.congestion_control,
        "min_rto_ns": trial.host.min_rto_ns,
        "small_queue_bytes": TSQ_LIMIT_BYTES,
        "initial_window_segments": 10,
    }
