"""A model as the policy of a rack's hosts: put in force on all of them or none, and taken back.

Hosts with a programmable NIC get it there (DOCA PCC), the others as pacing of their TCP. Each
host's lease is held meanwhile, and what it remembers (orchestration/agent/policies/policy.py) is on
its disk before anything is changed, so a controller that dies leaves what `undo` puts right. The
rack's ledger has the deployment as an open run until it ends, for its leases' sake: whoever finds
it dead takes them over.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from inventory.rack import Access, Rack
from orchestration.backends.hardware.safety.ledger import Ledger
from orchestration.backends.hardware.safety.recovery import dead_runs
from orchestration.core.errors import NotReadyError, check_known
from orchestration.core.problems import Code, Problem, told
from orchestration.device.client import Fleet, gather, holder_name, open_agents
from orchestration.device.errors import DeviceError
from orchestration.device.ssh import Secrets
from orchestration.policies.catboost_model import read_model
from orchestration.policies.compile import compile_model
from orchestration.policies.pacing.build import pacing_version
from orchestration.policies.render_c import policy_name
from orchestration.policies.render_doca import BASE_RTT_NS, render_doca
from orchestration.policies.trees import IntegerTrees

# The SDK's build takes minutes on a NIC's cores.
_TIMEOUT_S = 600.0
_SERVICES = ("lease", "policy")
# A build may take as long, and nobody renews meanwhile.
_LEASE_S = 1200.0


@dataclass(frozen=True)
class HostPolicy:
    """What one host says: its stack of versions, what its kernel or NIC reports, or an error."""

    device: str
    said: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    remedy: str = ""

    @property
    def problem(self) -> Problem:
        """The error, and the remedy."""
        return Problem("", self.error, self.remedy, Code.DEVICE_REFUSED)

    @property
    def model(self) -> str:
        """The hash of the model that kernel or NIC report, "" for none."""
        return str((self.said.get("reports") or {}).get("model", ""))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        error = told([self.problem], "error") if self.error else {}
        return {"device": self.device, **self.said, **error}

    @property
    def text(self) -> str:
        """What the host says, in a line."""
        if self.error:
            return self.error
        stack, reports = self.said["stack"], self.said["reports"]
        words = [f"{stack[-1]['name']} ({stack[-1]['kind']})"] if stack else ["no policy"]
        words += [f"model {self.model} is in force"] if self.model else []
        if stack and not self.model:
            words.append(
                "restarted since, so none is in force" if self.said["restarted"] else "not in force"
            )
        if self.said["interrupted"]:
            by = self.said["interrupted"]
            words.append(f"a deployment by {by['holder']} at {by['at']} was cut off")
        counts = dict(reports.get("counts", {}))
        if counts:
            waiting = reports.get("untimed_now", 0)
            words += [f"{value:,} {name}" for name, value in counts.items() if value]
            words += [f"{waiting} flows without a round trip yet"] if waiting else []
        return ", ".join(words)


def deploy_on_rack(
    rack: Rack,
    inventory: Path,
    source: Path,
    name: str,
    *,
    base_rtt_ns: int = 0,
    limit: Sequence[str] = (),
    secrets: Secrets | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[HostPolicy]:
    """Put a model in force on the rack's hosts, or on those of `limit`: on all or on none.

    Every host is asked first whether it can, and nothing is changed if one cannot. With a
    `base_rtt_ns` of 0 a flow takes the least that it has measured, and a NIC 13 us.

    Raises InputError for a model or a host that is none, NotReadyError if hosts refuse or cannot
    be reached, with the reason of each.
    """
    model = read_model(source)
    chosen = _hosts(rack, limit)
    versions = _versions(rack, chosen, model, policy_name(name), source, base_rtt_ns)
    holder = holder_name(f"closloop deploy {name}")
    with _held(rack, inventory, chosen, holder, secrets) as fleet:
        checks = {place: ("policy.check", {"version": versions[place]}) for place in versions}
        _refuse(_ask(fleet, checks))
        note("every host can")
        deploys = {
            place: ("policy.deploy", {"version": version, "holder": holder})
            for place, version in versions.items()
        }
        answers = _ask(fleet, deploys)
        failed = {d: answer for d, answer in answers.items() if isinstance(answer, DeviceError)}
        if failed:
            # an attempt that was refused is no version: only those that succeeded are taken back
            done = [device for device in answers if device not in failed]
            undone = _ask(fleet, {d: ("policy.undo", {"holder": holder}) for d in done})
            stuck = [d for d, answer in undone.items() if isinstance(answer, DeviceError)]
            _refuse(failed, stuck)
        return [HostPolicy(access.device, answers[_place(access)]) for access in chosen]


def undo_on_rack(
    rack: Rack,
    inventory: Path,
    name: str,
    *,
    limit: Sequence[str] = (),
    secrets: Secrets | None = None,
) -> list[HostPolicy]:
    """Put the version in force on each host that was so before; return what each says."""
    holder = holder_name(f"closloop deploy --undo {name}")
    request = {"holder": holder, "name": policy_name(name) if name else ""}
    return _each(rack, limit, ("policy.undo", request), secrets, holder, _heir_of(rack, inventory))


def restore_on_rack(
    rack: Rack, inventory: Path, *, secrets: Secrets | None = None
) -> list[HostPolicy]:
    """Have no policy in force on any host, as before the first deployment."""
    holder = holder_name("closloop restore")
    request = ("policy.restore", {"holder": holder})
    return _each(rack, (), request, secrets, holder, _heir_of(rack, inventory))


def status_of_rack(
    rack: Rack, *, limit: Sequence[str] = (), secrets: Secrets | None = None
) -> list[HostPolicy]:
    """Return what each host's kernel or NIC reports; nothing is changed."""
    return _each(rack, limit, ("policy.status", {}), secrets)


def _each(
    rack: Rack,
    limit: Sequence[str],
    request: tuple[str, Mapping[str, Any]],
    secrets: Secrets | None,
    holder: str = "",
    heir_of: Sequence[str] = (),
) -> list[HostPolicy]:
    """Send a request to each host that can be reached and, with a holder, is free."""
    chosen = _hosts(rack, limit)
    agents, problems = _open(rack, chosen, secrets)
    answers: dict[str, Any] = {problem.device: problem for problem in problems}
    nonce = uuid4().hex
    with Fleet(agents) as fleet:
        if holder:
            taken = _ask(fleet, {d: ("lease.take", _lease(holder, nonce, heir_of)) for d in agents})
            answers.update({d: a for d, a in taken.items() if isinstance(a, DeviceError)})
        held = [device for device in agents if device not in answers]
        ready = [a for a in chosen if {a.device, _place(a)} <= set(held)]
        try:
            answers.update(_ask(fleet, {_place(access): request for access in ready}))
        finally:
            if holder:
                _drop(fleet, held, nonce)
    said = [next(answers[d] for d in (a.device, _place(a)) if d in answers) for a in chosen]
    return [_said(access.device, answer) for access, answer in zip(chosen, said, strict=True)]


def _place(access: Access) -> str:
    """Return where a host's policy runs: on the host, or on the cores of its NIC."""
    return f"{access.device}'s DPU" if access.dpu else access.device


def _said(device: str, answer: Any) -> HostPolicy:
    if isinstance(answer, DeviceError):
        return HostPolicy(device, {}, *answer.alone.parts[:2])
    return HostPolicy(device, answer)


def _hosts(rack: Rack, limit: Sequence[str]) -> list[Access]:
    hosts = rack.testbed.hosts
    check_known("--limit", f"rack {rack.name} has no host {{!r}}", limit, hosts, "it has ")
    return [rack.access[name] for name in hosts if not limit or name in limit]


def _versions(
    rack: Rack,
    hosts: Iterable[Access],
    model: IntegerTrees,
    name: str,
    source: Path,
    base_rtt_ns: int,
) -> dict[str, dict[str, Any]]:
    """Return what each host is to run."""
    settings = model.settings
    parameters = (settings.target_thousandths, settings.beta_thousandths, base_rtt_ns)
    versions: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="closloop-deploy-") as folder:
        written = Path(folder, f"{name}.c")
        compile_model(source, "c", written)
        for access in hosts:
            line_bps = min(port.rate_bps for port in rack.testbed.ports_of[access.device])
            if access.pcc_device:
                versions[_place(access)] = {
                    "kind": "pcc",
                    "name": name,
                    "model": model.hash,
                    "device": access.pcc_device,
                    "files": dict(render_doca(model, name, base_rtt_ns or BASE_RTT_NS)),
                }
            else:
                versions[access.device] = pacing_version(
                    written,
                    name,
                    model.hash,
                    line_bps,
                    rack.fabric_prefix,
                    access.interfaces,
                    parameters,
                )
    return versions


@contextmanager
def _held(
    rack: Rack, inventory: Path, chosen: Sequence[Access], holder: str, secrets: Secrets | None
) -> Iterator[Fleet]:
    """Yield agents on all hosts, whose leases are held. Raises NotReadyError."""
    heir_of = _heir_of(rack, inventory)
    agents, problems = _open(rack, chosen, secrets)
    with Fleet(agents) as fleet:
        _refuse({problem.device: problem for problem in problems})
        ledger = Ledger.of(rack.name, inventory)
        nonce = ledger.open_run(holder)
        try:
            lease = _lease(holder, nonce, heir_of)
            _refuse(_ask(fleet, dict.fromkeys(agents, ("lease.take", lease))))
            yield fleet
        finally:
            _drop(fleet, agents, nonce)
            ledger.close_run(nonce)


def _heir_of(rack: Rack, inventory: Path) -> list[str]:
    """Return the runs and deployments of this rack that are dead, whose leases may be taken."""
    return [run.run for run in dead_runs(Ledger.of(rack.name, inventory))]


def _open(
    rack: Rack, chosen: Sequence[Access], secrets: Secrets | None
) -> tuple[dict[str, Any], list[DeviceError]]:
    dpus = [replace(a, device=_place(a), address=a.dpu) for a in chosen if a.dpu]
    wanted = [*chosen, *dpus]
    services = dict.fromkeys((access.device for access in wanted), _SERVICES)
    agents, problems = open_agents(wanted, rack.known_hosts_file, services, secrets)
    return dict(agents), problems


def _lease(holder: str, nonce: str, heir_of: Sequence[str]) -> dict[str, Any]:
    return {"holder": holder, "nonce": nonce, "ttl_s": _LEASE_S, "heir_of": list(heir_of)}


def _drop(fleet: Fleet, devices: Iterable[str], nonce: str) -> None:
    with suppress(DeviceError):
        _ask(fleet, {device: ("lease.drop", {"nonce": nonce}) for device in devices})


def _ask(fleet: Fleet, requests: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    return gather({d: (fleet.agents[d], said) for d, said in requests.items()}, _TIMEOUT_S)


def _refuse(answers: Mapping[str, Any], stuck: Sequence[str] = ()) -> None:
    """Raise NotReadyError for hosts that refuse: errors, or lists of reasons and remedies."""
    problems: list[Problem] = []
    for device, answer in answers.items():
        if isinstance(answer, DeviceError):
            problems.append(answer.alone.relocated(device))
        elif not isinstance(answer, Mapping):
            problems += [
                Problem(device, what, remedy, Code.DEVICE_REFUSED) for what, remedy in answer or ()
            ]
    if not problems:
        return
    end = "; the former policy is in force everywhere"
    if stuck:
        end = f"; not taken back on {', '.join(stuck)}: run closloop restore"
    raise NotReadyError([*problems[:-1], problems[-1].with_end(end)])
