"""What host and guest exchange: files in one folder.

    job.json        trial, testbed, fabric, faults
    requests.bin    all netlink requests, referred to by (offset, length)
    schedule.npz    the flows
    result.npz      the guest's arrays; result.json its events and facts

The guest reads them with the standard library and NumPy only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inventory.testbed_json import testbed_from_json, testbed_to_json
from inventory.topology import Testbed
from orchestration.model.codec import flattened, nested, record_tables
from orchestration.model.records import (
    ChangeRecords,
    Event,
    FlowRecords,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.model.trial import TrialSpec

if TYPE_CHECKING:
    from orchestration.backends.emulated.fabric import FabricPlan

# The file in a job's folder that names a policy to load, in place of a trial.
POLICY = "policy"

Span = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """Requests to send at one time: (namespace, requests) pairs, and an entry for the event log.

    `down` are the links that are down from then on, None if that does not change.
    """

    t_ns: int
    kind: str
    detail: str
    requests: tuple[tuple[int, tuple[bytes, ...]], ...]
    down: tuple[int, ...] | None = None


@dataclass(frozen=True)
class NamespaceJob:
    """One device as the guest builds it."""

    name: str
    sysctls: dict[str, str]
    interfaces: tuple[str, ...]
    links_up: tuple[bytes, ...]
    requests: tuple[bytes, ...]


@dataclass(frozen=True)
class Job:
    """Everything a guest needs."""

    trial: TrialSpec
    testbed: Testbed
    namespaces: tuple[NamespaceJob, ...]
    links: tuple[bytes, ...]
    host_addresses: dict[str, tuple[str, ...]]
    queue_places: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]
    schedule: Schedule
    probe: dict[str, Any] | None = None
    host_observes: list[str] | None = None
    flow_object: str = ""
    keep_flow_table: bool = False
    mark_object: str = ""
    dctcp: tuple[str, str] | None = None


class _Blob:
    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, requests: Iterable[bytes]) -> Span:
        start = len(self.data)
        for request in requests:
            self.data += request + b"\0" * (-len(request) % 4)
        return start, len(self.data) - start


def _split(blob: bytes, span: Span) -> tuple[bytes, ...]:
    at, end = span[0], span[0] + span[1]
    requests = []
    while at < end:
        (length,) = struct.unpack_from("=I", blob, at)
        requests.append(blob[at : at + length])
        at += (length + 3) & ~3
    return tuple(requests)


def write_job(
    folder: Path,
    trial: TrialSpec,
    testbed: Testbed,
    plan: FabricPlan,
    steps: Iterable[Step],
    schedule: Schedule,
    probe: dict[str, Any] | None = None,
    host_observes: Sequence[str] | None = None,
    flow_object: str = "",
    keep_flow_table: bool = False,
    mark_object: str = "",
    dctcp: tuple[str, str] | None = None,
) -> None:
    """Write the files of a job into `folder`.

    `host_observes` means that the tuner runs on the host (see `remote`), and lists the signals that
    it observes. `flow_object` is the path of the compiled flow table, "" if there is none.
    `keep_flow_table` keeps one even for tuners that do not observe flows. `mark_object` is the path
    of the compiled program that marks where the kernel has no RED, "" if it has. `dctcp` is the
    path of the compiled program that is DCTCP where the kernel has none, and its name.
    """
    blob = _Blob()
    data = {
        "trial": trial.to_json(),
        "testbed": testbed_to_json(testbed),
        "namespaces": [
            {
                "name": item.name,
                "sysctls": item.sysctls,
                "interfaces": item.interfaces,
                "links_up": blob.add(item.links_up),
                "requests": blob.add(item.requests),
            }
            for item in plan.namespaces
        ],
        "links": blob.add(plan.links),
        "host_addresses": plan.host_addresses,
        "queue_places": plan.queue_places,
        "steps": [
            {
                "t_ns": step.t_ns,
                "kind": step.kind,
                "detail": step.detail,
                "requests": [(place, blob.add(requests)) for place, requests in step.requests],
                "down": step.down,
            }
            for step in steps
        ],
        "classes": schedule.classes,
        "probe": probe,
        "host_observes": None if host_observes is None else list(host_observes),
        "flow_object": flow_object,
        "keep_flow_table": keep_flow_table,
        "mark_object": mark_object,
        "dctcp": dctcp,
    }
    (folder / "job.json").write_text(json.dumps(data))
    (folder / "requests.bin").write_bytes(bytes(blob.data))
    np.savez(
        folder / "schedule.npz",
        start_ns=schedule.start_ns,
        src=schedule.src,
        dst=schedule.dst,
        size_bytes=schedule.size_bytes,
        klass=schedule.klass,
    )


def read_job(folder: Path) -> Job:
    """Read what `write_job` wrote."""
    data = json.loads((folder / "job.json").read_text())
    blob = (folder / "requests.bin").read_bytes()
    with np.load(folder / "schedule.npz") as arrays:
        schedule = Schedule(**arrays, classes=tuple(data["classes"]))
    return Job(
        trial=TrialSpec.from_json(data["trial"]),
        testbed=testbed_from_json(data["testbed"]),
        namespaces=tuple(
            NamespaceJob(
                item["name"],
                item["sysctls"],
                tuple(item["interfaces"]),
                _split(blob, item["links_up"]),
                _split(blob, item["requests"]),
            )
            for item in data["namespaces"]
        ),
        links=_split(blob, data["links"]),
        host_addresses={name: tuple(value) for name, value in data["host_addresses"].items()},
        queue_places=tuple((place, index) for place, index in data["queue_places"]),
        steps=tuple(
            Step(
                item["t_ns"],
                item["kind"],
                item["detail"],
                tuple((place, _split(blob, span)) for place, span in item["requests"]),
                None if item["down"] is None else tuple(item["down"]),
            )
            for item in data["steps"]
        ),
        schedule=schedule,
        probe=data["probe"],
        host_observes=data["host_observes"],
        flow_object=data["flow_object"],
        keep_flow_table=data["keep_flow_table"],
        mark_object=data["mark_object"],
        dctcp=None if data["dctcp"] is None else tuple(data["dctcp"]),
    )


def write_result(folder: Path, record: TrialRecord) -> None:
    """Write a trial's record (in the guest)."""
    arrays = {**record_tables(record), "trace": record.trace}
    if record.acked is not None:
        arrays["acked"] = {"t_ns": record.acked.t_ns, "values": record.acked.values}
    np.savez(folder / "result.npz", **flattened(arrays))
    said = {"events": [asdict(event) for event in record.events], "facts": dict(record.facts)}
    (folder / "result.json").write_text(json.dumps(said))


def read_result(folder: Path) -> TrialRecord:
    """Read what `write_result` wrote. Raises OSError or ValueError if it is incomplete."""
    said = json.loads((folder / "result.json").read_text())
    with np.load(folder / "result.npz") as file:
        tables = nested({name: file[name] for name in file.files})
    return TrialRecord(
        flows=FlowRecords(**tables["flows"]),
        samples={scope: Samples(**columns) for scope, columns in tables["samples"].items()},
        changes={knob: ChangeRecords(**columns) for knob, columns in tables["changes"].items()},
        trace=tables.get("trace", {}),
        acked=Samples(**tables["acked"]) if "acked" in tables else None,
        events=tuple(Event(**item) for item in said["events"]),
        facts=said["facts"],
    )
