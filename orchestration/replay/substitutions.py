"""What a replay cannot take over from its parent, and what the user chose in its place.

One rule for all parents and backends. What decides a trial's results (congestion control with its
parameters and window, buffers, PFC, load balancing, loss on links, what sends the flows) is carried
over, or the user names what takes its place, or the replay is refused. The rest is a note.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestration.campaign.hosts import Roce
from orchestration.core.capabilities import Mode, capabilities, mode_of
from orchestration.core.congestion import PROGRAM, all_controls, roce_controls
from orchestration.core.errors import InputError, check_known
from orchestration.core.load_balancing import ECMP, LoadBalancingSpec
from orchestration.core.pattern import SOCKETS, DriverSpec, PatternSpec
from orchestration.core.provenance import (
    CONGESTION_CONTROL,
    HPCC_FORMAT,
    IMPORTED_CONTROL,
    UNKNOWN_CONTROL,
    import_settings,
)
from orchestration.core.roce import RoceSpec
from orchestration.core.topology import Testbed
from orchestration.core.trial import CLOSLOOP, LINUX, FabricSpec, HostSpec, TrialSpec
from orchestration.replay.request import ReplayRequest
from orchestration.results.reader import TrialResult

# What can be left out, and what the replay has then.
WITHOUT = {
    "shared-buffer": "a buffer for each port",
    "pfc": "queues that drop what does not fit",
    "load-balancing": "ECMP",
    "link-loss": "links without random loss",
    "drivers": "sockets, without limits of rate",
}
# What a testbed says: named by the user, it is the user's choice.
_OF_TESTBED = ("shared-buffer", "pfc", "link-loss")
# Programs that send flows over TCP as sockets do, and the options that leave it so.
_LIKE_SOCKETS = {"iperf3": ("block", "zerocopy"), "fio": ("block", "nodelay")}
_CONTROL_OPTION, _WITHOUT_OPTION = "--congestion-control", "--without"


@dataclass(frozen=True)
class Unrepeatable:
    """Something that decides the parent's results, and that the backend cannot repeat.

    `name` is `CONGESTION_CONTROL` or a key of `WITHOUT`.
    """

    name: str
    what: str


@dataclass(frozen=True)
class Transport:
    """The hosts' settings, None for a campaign's defaults, and the control of patterns, or ""."""

    host: HostSpec | None
    patterns: Mapping[str, str]


def check_choices(request: ReplayRequest) -> None:
    """Raise InputError for a congestion control, or a word of `without`, that is unknown."""
    named = [request.congestion_control] if request.congestion_control else []
    check_known(_CONTROL_OPTION, "unknown: {!r}", named, _controls())
    check_known(_WITHOUT_OPTION, "unknown: {!r}", request.without, WITHOUT)


def check_substitutions(
    trial: TrialResult, patterns: Mapping[str, PatternSpec], backend: str, request: ReplayRequest
) -> list[str]:
    """Return notes on what the replay has in place of what decides its parent's results.

    `patterns` are those of the classes that have flows. Raises InputError, with everything that
    the user has to choose, if anything is neither carried over nor chosen.
    """
    check_choices(request)
    left = _OF_TESTBED if request.testbed else ()
    lost = [one for one in _unrepeatable(trial, patterns, backend) if one.name not in left]
    names = list(dict.fromkeys(one.name for one in lost))
    for name in request.without:
        if name not in names:
            raise InputError.single(
                f"{_WITHOUT_OPTION} {name}",
                "the replay takes it over, or the parent had none",
                "leave it out; to change more, edit the files that --plan-only writes",
            )
    chosen = (*request.without, *([CONGESTION_CONTROL] if request.congestion_control else []))
    if open_ := [one for one in lost if one.name not in chosen]:
        raise _refused(trial, backend, open_)
    named = f"{request.congestion_control} with its default parameters"
    instead = {**WITHOUT, CONGESTION_CONTROL: named}
    notes = [f"in place of {one.what}: {instead[one.name]}" for one in lost]
    return [*notes, *_notes(trial, patterns, backend)]


def _refused(trial: TrialResult, backend: str, lost: Sequence[Unrepeatable]) -> InputError:
    """Return the error that lists what is lost, and the options that choose its replacement."""
    options, names = [], list(dict.fromkeys(one.name for one in lost))
    for name in names:
        if name == CONGESTION_CONTROL:
            modes = modes_of(backend)
            first, *others = (c for c in _controls() if any(c in mode.controls for mode in modes))
            more = f" (or {', '.join(others)})" if others else ""
            options.append(f"{_CONTROL_OPTION} {first}{more}")
        else:
            options.append(f"{_WITHOUT_OPTION} {name}")
    # the longest last, so that the command can be read up to its parenthesis
    options.sort(key=lambda text: "(" in text)
    of_fabric = [f"{_WITHOUT_OPTION} {name}" for name in _OF_TESTBED if name in names]
    own = f"; --testbed FILE, a fabric of your own, stands for {' '.join(of_fabric)}"
    return InputError.single(
        str(trial.folder),
        f"a replay on {backend} cannot yet have what decides this run's results: "
        + "; ".join(one.what for one in lost),
        f"to send the same flows under other settings, name them: {' '.join(options)}"
        + (own if of_fabric else ""),
    )


def _controls() -> list[str]:
    return [name for name in all_controls() if name != PROGRAM]


def modes_of(backend: str) -> tuple[Mode, ...]:
    """Return what a backend can do in virtual time, or on a rack."""
    return capabilities(backend).on("")


def ran_by_closloop(spec: TrialSpec) -> bool:
    """Return whether closloop ran a trial: imported results are other programs'."""
    return capabilities(spec.backend).runs


def can_balance_load(backend: str, ways: LoadBalancingSpec) -> bool:
    """Return whether a backend's switches choose paths in this way."""
    return any(ways.route_by in mode.load_balancing for mode in modes_of(backend))


def programs_send(backend: str) -> bool:
    """Return whether programs can send flows on a backend's hosts."""
    return any(mode.programs_send for mode in modes_of(backend))


def transport(
    trial: TrialResult, order: Sequence[str], patterns: Mapping[str, PatternSpec], control: str
) -> Transport:
    """Return the hosts' and patterns' congestion control, with `control` in its place if named.

    `order` are the classes that have flows, `patterns` those of them that are declared. A class of
    the testbed with a control of its own is overruled by its patterns.
    """
    spec = trial.spec
    own = {name: pattern.congestion_control for name, pattern in patterns.items()}
    if not control:
        return Transport(spec.host if ran_by_closloop(spec) else None, own)
    if any(klass.congestion_control for klass in trial.testbed.classes):
        return Transport(spec.host, dict.fromkeys(order, control))
    if control == spec.host.congestion_control:
        roce = spec.host.roce if spec.host.is_roce else None
        return Transport(dataclasses.replace(spec.host, roce=roce), {})
    base = spec.host if ran_by_closloop(spec) else HostSpec()
    return Transport(hosts_with_control(control, trial.testbed, base), {})


def hosts_with_control(control: str, testbed: Testbed, base: HostSpec) -> HostSpec:
    """Return hosts under another control, with its default parameters; TCP's timeout is `base`'s.

    RoCE's packets carry what TCP's do on this testbed, at most the default.
    """
    if control not in roce_controls():
        return dataclasses.replace(base, congestion_control=control, roce=None)
    payload = min(RoceSpec.payload_bytes, max(4, testbed.mss_bytes // 4 * 4))
    roce = Roce().spec(control, "", testbed.nic_rates_bps[0])
    return HostSpec(control, base.min_rto_ns, dataclasses.replace(roce, payload_bytes=payload))


def fabric_of(trial: TrialResult) -> FabricSpec:
    """Return the parent's switches, which are Linux' on a rack; elsewhere nothing is known."""
    spec, imported = trial.spec, trial.facts.get("imported")
    if isinstance(imported, Mapping) and imported.get("format") == HPCC_FORMAT:
        # its switches mark what leaves (`SwitchNode::SwitchNotifyDequeue`)
        return FabricSpec(CLOSLOOP.kind, "departures")
    known = spec.fabric != LINUX or mode_of(spec).is_linux
    return spec.fabric if known else CLOSLOOP


def has_roce(backend: str, host: HostSpec | None) -> bool:
    """Return whether a backend has RoCE NICs, for flows of these hosts."""
    control = host.congestion_control if host is not None else ""
    return capabilities(backend).default(control, "").has_roce


def _unrepeatable(
    trial: TrialResult, patterns: Mapping[str, PatternSpec], backend: str
) -> Iterator[Unrepeatable]:
    spec = trial.spec
    if not ran_by_closloop(spec):
        yield from _unrepeatable_of_import(trial.facts, trial.testbed, spec)
    else:
        control = spec.host.congestion_control
        known = ("", *capabilities(backend).default(control, "").controls)
        if control not in known:
            whose = "its hosts' RoCE NICs" if spec.host.is_roce else "its hosts"
            yield Unrepeatable(CONGESTION_CONTROL, f"congestion control {control} of {whose}")
        for name, pattern in patterns.items():
            if pattern.congestion_control not in known:
                what = f"congestion control {pattern.congestion_control} of the flows {name}"
                yield Unrepeatable(CONGESTION_CONTROL, what)
    ways = spec.load_balancing
    if ways != ECMP and not can_balance_load(backend, ways):
        yield Unrepeatable("load-balancing", f"load balancing by {ways.kind} ({ways.route_by})")
    for name, pattern in patterns.items():
        if not programs_send(backend) and not _sends_like_sockets(pattern.driver):
            options = ", ".join(f"{key} {value}" for key, value in pattern.driver.options)
            how = f" with {options}" if options else ""
            yield Unrepeatable(
                "drivers", f"{pattern.driver.name}{how}, which sent the flows {name}"
            )


def _unrepeatable_of_import(
    facts: Mapping[str, Any], testbed: Testbed, spec: TrialSpec
) -> Iterator[Unrepeatable]:
    own = spec.host.congestion_control
    control = str(
        facts.get(CONGESTION_CONTROL, UNKNOWN_CONTROL if own == IMPORTED_CONTROL else own)
    )
    buffer_bytes = max((port.buffer_bytes for port in testbed.switch_ports), default=0)
    settings = import_settings(facts, buffer_bytes)
    if control == UNKNOWN_CONTROL:
        yield Unrepeatable(CONGESTION_CONTROL, "its congestion control, which its files do not say")
    elif control != HostSpec().congestion_control:
        parameters = " with its parameters" if facts.get("hpcc_parameters") else ""
        yield Unrepeatable(CONGESTION_CONTROL, f"congestion control {control}{parameters}")
    for name, what in settings.items():
        # those of the transport (a window, IRN) go with the congestion control
        yield Unrepeatable(name if name in WITHOUT else CONGESTION_CONTROL, what)


def _sends_like_sockets(driver: DriverSpec) -> bool:
    """Return whether sockets send as this driver did: over TCP, and as fast as that lets it."""
    if driver == SOCKETS:
        return True
    harmless = _LIKE_SOCKETS.get(driver.name)
    return harmless is not None and all(key in harmless for key, _ in driver.options)


def _notes(trial: TrialResult, patterns: Mapping[str, PatternSpec], backend: str) -> Iterator[str]:
    """Yield what differs and decides nothing, or what the choice of the backend includes."""
    spec = trial.spec
    for name, pattern in patterns.items():
        replaced = pattern.driver != SOCKETS and not programs_send(backend)
        if replaced and _sends_like_sockets(pattern.driver):
            yield f"sockets send what {pattern.driver.name} sent: {name}"
    if spec.clock and not capabilities(backend).on(spec.clock):
        yield f"the parent ran in real time, on this machine's kernel; the replay is on {backend}"
    if spec.scale != 1:
        yield f"the parent's rates were divided by {spec.scale}; the replay's are not"
    if spec.flow_sample_period_ns and not has_roce(backend, spec.host):
        yield f"flows are not sampled on {backend}"
    if not ran_by_closloop(spec):
        here = trial.testbed.wire_bytes(1) - 1
        yield f"packets have this testbed's headers ({here} B with TCP), whatever they had there"
