"""Attaches a flow table to every switch of a built fabric, in the guest."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.backends.emulated.job import Job
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.core.errors import NotReadyError
from orchestration.core.signals import wants_flow_table
from orchestration.datapath.flow_tables import OwnFlowTables

if TYPE_CHECKING:
    from collectors.readers.flows import FlowTables


def attach_flow_tables(
    job: Job, fabric: Fabric, observes: Collection[str]
) -> FlowTables | OwnFlowTables | None:
    """Return the flow tables of all switches, one each, with the flows of all ports with queues.

    Returns None unless the job asks for them or the tuner `observes` their signals. The data path
    of our own keeps them itself; on Linux' fabric a program does, which a switch's ports share.
    Raises LoadError if the kernel refuses, NotReadyError if the program could not be compiled.
    """
    if not (job.keep_flow_table or wants_flow_table(observes)):
        return None
    places = [
        (ifindex, queue.klass)
        for (_, ifindex), queue in zip(job.plan.queue_places, job.testbed.queues, strict=True)
    ]
    hosts = {
        socket.inet_aton(address): number
        for number, name in enumerate(job.testbed.hosts)
        for address in job.plan.host_addresses[name]
    }
    readings_per_slot = max(1, job.trial.action_period_ns // job.trial.sample_period_ns)
    if job.trial.fabric.kind != "linux" and not job.flow_object:
        return OwnFlowTables(places, hosts, readings_per_slot)
    from collectors.readers.flows import FlowTables

    return FlowTables(_watched(job, fabric), places, hosts, readings_per_slot)


def _watched(job: Job, fabric: Fabric) -> list[memoryview]:
    """Attach the program to all ports; return its memories."""
    from orchestration.agent.bpf.elf import read_program
    from orchestration.agent.bpf.load import LoadedProgram

    if not job.flow_object:
        raise NotReadyError(
            f"tuner {job.trial.tuner.name!r} observes flows, and the flow table was not compiled",
            "closloop doctor says what is missing",
        )
    program = read_program(Path(job.flow_object).read_bytes())
    ports: dict[int, list[int]] = {}
    for place, ifindex in dict.fromkeys(job.plan.queue_places):
        ports.setdefault(place, []).append(ifindex)
    memories = []
    for place, ifindexes in ports.items():
        loaded = LoadedProgram(program, "flow_table")
        memories.append(memoryview(loaded.memory)[: program.data_bytes])
        fabric.enter(place)
        for ifindex in ifindexes:
            loaded.watch_departures(ifindex)
    return memories
