"""Deploys a learned model as the congestion control policy of a rack's hosts, and takes it back.

A model is put in force on all hosts or on none: on a programmable NIC if a host has one (DOCA PCC),
else as the pacing of the host's TCP connections. Meanwhile each host's lease is held, and its
record (orchestration/agent/policies/policy.py) is on its disk before anything is changed, so that
`undo` can correct what a controller leaves that dies. The rack's ledger lists the deployment as an
open run until it ends, so that others can take over the leases of a dead one.
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
from orchestration.core.problems import Code, Problem, message_and_remedy
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
# A build may take as long, and the lease is not renewed meanwhile.
_LEASE_S = 1200.0


@dataclass(frozen=True)
class HostPolicy:
    """What one host reports, or an error: `status` is the agent's answer to `policy.status`."""

    device: str
    status: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    remedy: str = ""

    @property
    def problem(self) -> Problem:
        """The error, and the remedy."""
        return Problem("", self.error, self.remedy, Code.DEVICE_REFUSED)

    @property
    def model(self) -> str:
        """The hash of the model that the kernel or the NIC reports, "" for none."""
        return str((self.status.get("reports") or {}).get("model", ""))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        error = message_and_remedy([self.problem], "error") if self.error else {}
        return {"device": self.device, **self.status, **error}

    @property
    def text(self) -> str:
        """The host's report in one line."""
        if self.error:
            return self.error
        stack, reports = self.status["stack"], self.status["reports"]
        words = [f"{stack[-1]['name']} ({stack[-1]['kind']})"] if stack else ["no policy"]
        words += [f"model {self.model} is in force"] if self.model else []
        if stack and not self.model:
            words.append(
                "restarted since, so none is in force"
                if self.status["restarted"]
                else "not in force"
            )
        if self.status["interrupted"]:
            by = self.status["interrupted"]
            words.append(f"a deployment by {by['holder']} at {by['at']} was interrupted")
        counts = dict(reports.get("counts", {}))
        if counts:
            untimed = reports.get("untimed_now", 0)
            words += [f"{value:,} {name}" for name, value in counts.items() if value]
            words += [f"{untimed} flows without a round trip yet"] if untimed else []
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

    Every host is first asked whether it can run the model, and nothing is changed if one cannot.
    `base_rtt_ns` is the base RTT that the policy assumes; with 0, a flow uses the smallest RTT that
    it has measured, and a NIC 13 us. `note` gets messages about the progress.

    Raises InputError for an unreadable model or an unknown host, and NotReadyError if hosts refuse
    or cannot be reached, with the reason of each.
    """
    model = read_model(source)
    chosen = _hosts(rack, limit)
    versions = _versions(rack, chosen, model, policy_name(name), source, base_rtt_ns)
    holder = holder_name(f"closloop deploy {name}")
    with _leased_hosts(rack, inventory, chosen, holder, secrets) as fleet:
        checks = {target: ("policy.check", {"version": versions[target]}) for target in versions}
        _refuse(_ask(fleet, checks))
        note("every host can run it")
        deploys = {
            target: ("policy.deploy", {"version": version, "holder": holder})
            for target, version in versions.items()
        }
        answers = _ask(fleet, deploys)
        failed = {d: answer for d, answer in answers.items() if isinstance(answer, DeviceError)}
        if failed:
            # a refused attempt leaves no version, so only successful ones are taken back
            done = [device for device in answers if device not in failed]
            undo_answers = _ask(fleet, {d: ("policy.undo", {"holder": holder}) for d in done})
            stuck = [d for d, answer in undo_answers.items() if isinstance(answer, DeviceError)]
            _refuse(failed, stuck)
        return [HostPolicy(access.device, answers[_target(access)]) for access in chosen]


def undo_on_rack(
    rack: Rack,
    inventory: Path,
    name: str,
    *,
    limit: Sequence[str] = (),
    secrets: Secrets | None = None,
) -> list[HostPolicy]:
    """Put the previous version in force again on each host; return the hosts' reports."""
    holder = holder_name(f"closloop deploy --undo {name}")
    request = {"holder": holder, "name": policy_name(name) if name else ""}
    return _on_each_host(
        rack, limit, ("policy.undo", request), secrets, holder, _heir_of(rack, inventory)
    )


def restore_on_rack(
    rack: Rack, inventory: Path, *, secrets: Secrets | None = None
) -> list[HostPolicy]:
    """Put no policy in force on any host, as before the first deployment; return the reports."""
    holder = holder_name("closloop restore")
    request = ("policy.restore", {"holder": holder})
    return _on_each_host(rack, (), request, secrets, holder, _heir_of(rack, inventory))


def status_of_rack(
    rack: Rack, *, limit: Sequence[str] = (), secrets: Secrets | None = None
) -> list[HostPolicy]:
    """Return the hosts' reports; nothing is changed."""
    return _on_each_host(rack, limit, ("policy.status", {}), secrets)


def _on_each_host(
    rack: Rack,
    limit: Sequence[str],
    request: tuple[str, Mapping[str, Any]],
    secrets: Secrets | None,
    holder: str = "",
    heir_of: Sequence[str] = (),
) -> list[HostPolicy]:
    """Send a request to each host that can be reached; return the hosts' reports.

    With a `holder`, each host's lease is held meanwhile; hosts whose lease is not free are left
    out.
    """
    chosen = _hosts(rack, limit)
    agents, problems = _open(rack, chosen, secrets)
    answers: dict[str, Any] = {problem.device: problem for problem in problems}
    nonce = uuid4().hex
    with Fleet(agents) as fleet:
        if holder:
            taken = _ask(fleet, {d: ("lease.take", _lease(holder, nonce, heir_of)) for d in agents})
            answers.update({d: a for d, a in taken.items() if isinstance(a, DeviceError)})
        held = [device for device in agents if device not in answers]
        ready = [a for a in chosen if {a.device, _target(a)} <= set(held)]
        try:
            answers.update(_ask(fleet, {_target(access): request for access in ready}))
        finally:
            if holder:
                _drop(fleet, held, nonce)
    by_host = [next(answers[d] for d in (a.device, _target(a)) if d in answers) for a in chosen]
    return [
        _host_policy(access.device, answer) for access, answer in zip(chosen, by_host, strict=True)
    ]


def _target(access: Access) -> str:
    """Return the device that runs a host's policy: the host, or its NIC's own cores (DPU)."""
    return f"{access.device}'s DPU" if access.dpu else access.device


def _host_policy(device: str, answer: Any) -> HostPolicy:
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
    """Return the version that each target is to run."""
    settings = model.settings
    parameters = (settings.target_thousandths, settings.beta_thousandths, base_rtt_ns)
    versions: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="closloop-deploy-") as folder:
        written = Path(folder, f"{name}.c")
        compile_model(source, "c", written)
        for access in hosts:
            line_bps = min(port.rate_bps for port in rack.testbed.ports_of[access.device])
            if access.pcc_device:
                versions[_target(access)] = {
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
def _leased_hosts(
    rack: Rack, inventory: Path, chosen: Sequence[Access], holder: str, secrets: Secrets | None
) -> Iterator[Fleet]:
    """Yield agents on all hosts while their leases are held. Raises NotReadyError."""
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
    """Return the nonces of this rack's dead runs, whose leases may be taken over."""
    return [run.run for run in dead_runs(Ledger.of(rack.name, inventory))]


def _open(
    rack: Rack, chosen: Sequence[Access], secrets: Secrets | None
) -> tuple[dict[str, Any], list[DeviceError]]:
    dpus = [replace(a, device=_target(a), address=a.dpu) for a in chosen if a.dpu]
    accesses = [*chosen, *dpus]
    services = dict.fromkeys((access.device for access in accesses), _SERVICES)
    agents, problems = open_agents(accesses, rack.known_hosts_file, services, secrets)
    return dict(agents), problems


def _lease(holder: str, nonce: str, heir_of: Sequence[str]) -> dict[str, Any]:
    return {"holder": holder, "nonce": nonce, "ttl_s": _LEASE_S, "heir_of": list(heir_of)}


def _drop(fleet: Fleet, devices: Iterable[str], nonce: str) -> None:
    with suppress(DeviceError):
        _ask(fleet, {device: ("lease.drop", {"nonce": nonce}) for device in devices})


def _ask(fleet: Fleet, requests: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    return gather({d: (fleet.agents[d], request) for d, request in requests.items()}, _TIMEOUT_S)


def _refuse(answers: Mapping[str, Any], stuck: Sequence[str] = ()) -> None:
    """Raise NotReadyError if hosts refuse: if answers are errors, or lists of reasons and remedies.

    `stuck` are hosts on which a deployment could not be taken back.
    """
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
    end = "; the previous policy is in force everywhere"
    if stuck:
        end = f"; not taken back on {', '.join(stuck)}: run closloop restore"
    raise NotReadyError([*problems[:-1], problems[-1].with_end(end)])
