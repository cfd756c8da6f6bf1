"""The guest's first process: builds the fabric, runs one trial, writes the result, powers off.

The kernel starts it as init, with the job's folder in CLOSLOOP_JOB. It sends messages to the host
through its console (see `console`). Any other output is for people.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestration.backends.emulated.console import say
from orchestration.backends.emulated.kernel.patches import RED_STREAM
from orchestration.backends.emulated.system import mount_kernel_files, power_off
from orchestration.model.errors import ClosloopError, NotReadyError


def prepare_process() -> None:
    """Mount the file systems that the rest needs, and allow a socket for every flow."""
    mount_kernel_files()
    files = 1_000_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def repeat_draws(seed: int) -> None:
    """Seed RED's draws with the trial's seed, so that a repeated trial is identical to the bit."""
    try:
        RED_STREAM.write_text(str((seed * 0x9E3779B97F4A7C15 + 1) % (1 << 63) or 1))
    except FileNotFoundError as error:
        raise NotReadyError(
            "this kernel cannot repeat RED's draws: it was not built by this version of closloop",
            "closloop kernel build, and unset CLOSLOOP_KERNEL",
        ) from error


class Driver:
    """The traffic driver, in a process of its own that ends with the trial."""

    def __init__(self, job: Any, fabric: Any, ended: Callable[[], None]) -> None:
        """Prepare it; `ended` is called in that process when all flows have ended."""
        from traffic.drivers.connections import services
        from traffic.drivers.flows import Endpoints, Flows
        from traffic.drivers.sockets import Board, SocketDriver

        self._flows = len(job.schedule)
        memory = mmap.mmap(-1, Board.size_bytes(self._flows))
        self.board = Board(self._flows, memoryview(memory))
        self._ended = ended
        self._child_ended = False
        self._status: int | None = None
        hosts = job.testbed.hosts
        endpoints = Endpoints([job.host_addresses[name] for name in hosts])
        self._end_ns = job.trial.duration_ns + job.trial.drain_ns
        go, self._go = os.pipe()
        ready, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            of_pattern = services(job.testbed, job.trial.traffic)
            flows = Flows.of(job.schedule, endpoints, of_pattern)
            places = [fabric.number[name] for name in hosts]
            driver = SocketDriver(flows, lambda host: fabric.enter(places[host]), self.board)
            self._child(driver, go, told)
        os.close(told)
        signal.signal(signal.SIGCHLD, lambda *_: setattr(self, "_child_ended", True))
        if os.read(ready, 1) != b"r":
            raise RuntimeError("the traffic driver died while it opened its sockets: see above")

    def _child(self, driver: Any, go: int, told: int) -> None:
        try:
            driver.prepare()
            os.write(told, b"r")
            os.read(go, 1)
            driver.run(self.board.t0_ns, self._end_ns)
            self._ended()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def launch(self, t0_ns: int) -> None:
        """Start the traffic at `t0_ns`."""
        self.board.t0_ns = t0_ns
        os.write(self._go, b"g")

    def all_done(self) -> bool:
        """Return whether every flow has ended."""
        return self.board.done >= self._flows

    def ended_ns(self) -> int | None:
        """Return None: `ended` was told, and nothing was read after that."""
        return None

    def flows_done(self) -> int:
        """Return how many flows have ended."""
        return self.board.done

    def alive(self) -> None:
        """Raise RuntimeError if the driver has died. Costs no time while it lives."""
        if self._child_ended and self._status is None:
            self._wait()

    def outcome(self) -> Any:
        """Wait for the driver's end, and return the outcome of the flows."""
        from traffic.drivers.connections import flow_records

        self._wait()
        return flow_records(self.board)

    def facts(self) -> dict[str, Any]:
        """Return none: the flows' records have all."""
        return {}

    def _wait(self) -> None:
        """Wait until the driver's process has ended; raise RuntimeError if it ended badly."""
        if self._status is None:
            _, self._status = os.waitpid(self._pid, 0)
        if self._status:
            raise RuntimeError(f"the traffic driver ended with status {self._status}: see above")


class RoceTraffic:
    """The flows of a trial on RoCE NICs: the kernel sends them, no process does."""

    def __init__(self, job: Any) -> None:
        from orchestration.backends.emulated.data_path.flows import RoceFlows
        from traffic.drivers.connections import services

        addresses = [job.host_addresses[name] for name in job.testbed.hosts]
        tos = [
            RoceFlows.tos_of(service.tos) for service in services(job.testbed, job.trial.traffic)
        ]
        self._flows = RoceFlows(job.schedule, addresses, job.trial.host.roce, tos)

    def launch(self, t0_ns: int) -> None:
        """Post all flows."""
        self._flows.post(t0_ns)

    def alive(self) -> None:
        """Do nothing: there is no driver that could die."""

    def all_done(self) -> bool:
        """Return whether the sender of every flow knows that it has been received."""
        return self._flows.all_done()

    def ended_ns(self) -> int | None:
        """Return when the last sender knew, of CLOCK_MONOTONIC."""
        return int(self._flows.results()["done_ns"].max())

    def flows_done(self) -> int:
        """Return how many flows have been received."""
        return self._flows.received()

    def outcome(self) -> Any:
        """Return the outcome of the flows."""
        return self._flows.records()

    def facts(self) -> dict[str, int]:
        """Return sums over all flows."""
        found = self._flows.results()
        names = ("packets", "resent", "marked", "cnps", "naks", "timeouts")
        return {name: int(found[name].sum()) for name in names}


def run_job(folder: Path) -> None:
    """Build the fabric, run the trial, write its result."""
    from orchestration.backends.emulated.data_path.ports import last_reading_now
    from orchestration.backends.emulated.flow_tables import attach_flow_tables
    from orchestration.backends.emulated.job import read_job, write_result
    from orchestration.backends.emulated.remote import AskingTuner
    from orchestration.backends.emulated.rig import EmulatedRig, Fabric
    from orchestration.session import run_trial
    from tuners.registry import create

    job = read_job(folder)
    say(stage="build")
    fabric = Fabric(job)
    say(stage="connect")
    if job.probe is not None:
        from orchestration.backends.emulated.probes import run_probe

        run_probe(job, fabric, folder)
        return
    asked = job.host_observes
    tuner = create(job.trial.tuner) if asked is None else AskingTuner(folder, asked, say)
    repeat_draws(job.trial.seed)
    flows = attach_flow_tables(job, fabric, tuner.observes)
    own = job.trial.fabric.kind != "linux"
    ended = last_reading_now if own else lambda: None
    driver = RoceTraffic(job) if job.trial.host.is_roce else Driver(job, fabric, ended)
    rig = EmulatedRig(job, fabric, driver, flows)
    shown = 0

    def progress(t_ns: int, end_ns: int) -> None:
        nonlocal shown
        if t_ns >= shown:
            shown = t_ns + end_ns // 50
            say(t_ns=t_ns, done=driver.flows_done())

    say(stage="run")
    record = run_trial(rig, tuner, job.trial, job.testbed, folder, progress, in_guest=True)
    say(stage="write", t_ns=rig.now_ns())
    write_result(folder, record)


def main() -> None:
    """Run as process 1 of the guest."""
    try:
        prepare_process()
        say(stage="boot")
        run_job(Path(os.environ["CLOSLOOP_JOB"]))
        say(stage="done")
    except ClosloopError as error:
        say(stage="failed", error=error.message, remedy=error.remedy)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        say(stage="failed")
    power_off()


if __name__ == "__main__":
    main()
