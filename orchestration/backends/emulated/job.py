"""What host and guest exchange in one folder: the job, and the record that comes back.

Both files are pickles: host and guest run the same version of closloop, and the files serve one
trial only.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.core.congestion import NicPolicy
from orchestration.core.records import Schedule, TrialRecord
from orchestration.core.topology import Testbed
from orchestration.core.trial import TrialSpec

if TYPE_CHECKING:
    from orchestration.core.topology import Port

# The file in a job's folder that names a policy to load, in place of a trial.
POLICY = "policy"
JOB, _RESULT = "job.pickle", "result.pickle"
# Namespaces are passed as file descriptors with fixed numbers, so that requests can name them.
FIRST_NAMESPACE_FD = 2_000
FIRST_IFINDEX = 10


def ifindex(port: Port) -> int:
    """Return the interface index of a port, unique in the whole fabric."""
    return FIRST_IFINDEX + port.index


@dataclass(frozen=True)
class Step:
    """Netlink requests to send at `t_ns`, and an entry for the event log.

    `requests` has pairs of a namespace's number and the requests for it. `down` are the links that
    are down from then on; None if that does not change.
    """

    t_ns: int
    kind: str
    detail: str
    requests: tuple[tuple[int, tuple[bytes, ...]], ...]
    down: tuple[int, ...] | None = None


@dataclass(frozen=True)
class NamespacePlan:
    """One device: sysctls to write, then netlink requests to send inside it, in order.

    `links_up` are requests that must be made first, in all devices: a port drops what it sends
    while its peer is down, and routes over it stay unused.
    """

    name: str
    sysctls: dict[str, str]
    links_up: tuple[bytes, ...]
    requests: tuple[bytes, ...]
    interfaces: tuple[str, ...]


@dataclass(frozen=True)
class FabricPlan:
    """Everything that a guest needs to build the fabric and to find its queues again.

    `policy` has the numbers of the RoCE NICs' congestion control; None without RoCE NICs.
    """

    namespaces: tuple[NamespacePlan, ...]
    links: tuple[bytes, ...]
    host_addresses: dict[str, tuple[str, ...]]
    # For each entry of Testbed.queues: (namespace number, ifindex) of its port. The queue's class
    # says which of the port's queues it is (qdiscs.leaf_handle).
    queue_locations: tuple[tuple[int, int], ...]
    facts: dict[str, Any] = field(default_factory=dict)
    policy: NicPolicy | None = None


@dataclass(frozen=True)
class Job:
    """Everything a guest needs.

    If `host_observes` is not None, the tuner runs in the host's process (see `remote_tuner`), and
    these are the signals that it observes. `flow_object` is the path of the compiled flow table, ""
    if there is none. `keep_flow_table` keeps a flow table even for tuners that do not observe
    flows. `mark_object` is the path of the compiled program that marks if the kernel has no RED, ""
    if it has. `dctcp` has the path and the name of the compiled program that takes DCTCP's place if
    the kernel has no DCTCP. `tuners` are the entry points of tuners.
    """

    trial: TrialSpec
    testbed: Testbed
    plan: FabricPlan
    steps: tuple[Step, ...]
    schedule: Schedule
    probe: dict[str, Any] | None = None
    host_observes: tuple[str, ...] | None = None
    flow_object: str = ""
    keep_flow_table: bool = False
    mark_object: str = ""
    dctcp: tuple[str, str] | None = None
    tuners: dict[str, str] = field(default_factory=dict)


def write_job(folder: Path, job: Job) -> None:
    """Write a job into its folder."""
    (folder / JOB).write_bytes(pickle.dumps(job))


def read_job(folder: Path) -> Job:
    """Read a job from its folder."""
    job = pickle.loads((folder / JOB).read_bytes())
    assert isinstance(job, Job)
    return job


def write_result(folder: Path, record: TrialRecord) -> None:
    """Write a trial's record (in the guest)."""
    (folder / _RESULT).write_bytes(pickle.dumps(record))


def read_result(folder: Path) -> TrialRecord:
    """Read a trial's record. Raises OSError or ValueError if it is missing or incomplete."""
    try:
        record = pickle.loads((folder / _RESULT).read_bytes())
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(str(error)) from error
    assert isinstance(record, TrialRecord)
    return record
