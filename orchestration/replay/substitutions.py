"""What a backend cannot repeat of a replayed trial, and the substitutes that the user chooses.

One rule holds for all parents and backends. A setting that decides a trial's results (congestion
control with its parameters and window, buffers, PFC, load balancing, loss on links, the program
that sends the flows) is either repeated, or the user names a substitute, or the replay is refused.
All other differences are notes.
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

# What can be left out, and what the replay has in its place.
WITHOUT = {
    "shared-buffer": "a buffer for each port",
    "pfc": "queues that drop what does not fit",
    "load-balancing": "ECMP",
    "link-loss": "links without random loss",
    "drivers": "sockets, without limits of rate",
}
# These are settings of a testbed: a testbed that the user names replaces them.
_OF_TESTBED = ("shared-buffer", "pfc", "link-loss")
# Programs that send flows over TCP as sockets do, and their options that do not change that.
_LIKE_SOCKETS = {"iperf3": ("block", "zerocopy"), "fio": ("block", "nodelay")}
_CONTROL_OPTION, _WITHOUT_OPTION = "--congestion-control", "--without"


@dataclass(frozen=True)
class Unrepeatable:
    """A setting that decides the parent's results, and that the backend cannot repeat.

    `name` is `CONGESTION_CONTROL` or a key of `WITHOUT`; `what` describes the setting.
    """

    name: str
    what: str


@dataclass(frozen=True)
class Transport:
    """The hosts' settings (None: a campaign's defaults), and the congestion control by pattern."""

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
    """Return notes on the substitutes that the replay has for settings of its parent.

    `patterns` are those of the classes that have flows. Raises InputError, with all options that
    the user has to choose, if a setting is neither repeated nor has a substitute.
    """
    check_choices(request)
    replaced = _OF_TESTBED if request.testbed else ()
    lost = [
        setting
        for setting in _unrepeatable(trial, patterns, backend)
        if setting.name not in replaced
    ]
    names = list(dict.fromkeys(setting.name for setting in lost))
    for name in request.without:
        if name not in names:
            raise InputError.single(
                f"{_WITHOUT_OPTION} {name}",
                "the replay repeats it, or the parent did not have it",
                "leave it out; to change more, edit the files that --plan-only writes",
            )
    chosen = (*request.without, *([CONGESTION_CONTROL] if request.congestion_control else []))
    if not_chosen := [setting for setting in lost if setting.name not in chosen]:
        raise _refused(trial, backend, not_chosen)
    control = f"{request.congestion_control} with its default parameters"
    substitutes = {**WITHOUT, CONGESTION_CONTROL: control}
    notes = [f"in place of {setting.what}: {substitutes[setting.name]}" for setting in lost]
    return [*notes, *_notes(trial, patterns, backend)]


def _refused(trial: TrialResult, backend: str, lost: Sequence[Unrepeatable]) -> InputError:
    """Return the error that lists the lost settings, and the options that choose substitutes."""
    options, names = [], list(dict.fromkeys(setting.name for setting in lost))
    for name in names:
        if name == CONGESTION_CONTROL:
            modes = modes_of(backend)
            first, *others = (c for c in _controls() if any(c in mode.controls for mode in modes))
            more = f" (or {', '.join(others)})" if others else ""
            options.append(f"{_CONTROL_OPTION} {first}{more}")
        else:
            options.append(f"{_WITHOUT_OPTION} {name}")
    # options with alternatives in brackets come last, so that the command can be copied up to them
    options.sort(key=lambda text: "(" in text)
    of_fabric = [f"{_WITHOUT_OPTION} {name}" for name in _OF_TESTBED if name in names]
    own = f"; --testbed FILE, a fabric of your own, replaces {' '.join(of_fabric)}"
    return InputError.single(
        str(trial.folder),
        f"a replay on {backend} cannot yet repeat settings that decide this run's results: "
        + "; ".join(setting.what for setting in lost),
        f"to send the same flows under other settings, choose them: {' '.join(options)}"
        + (own if of_fabric else ""),
    )


def _controls() -> list[str]:
    return [name for name in all_controls() if name != PROGRAM]


def modes_of(backend: str) -> tuple[Mode, ...]:
    """Return the modes of a backend in virtual time, or on a rack."""
    return capabilities(backend).on("")


def ran_by_closloop(spec: TrialSpec) -> bool:
    """Return whether closloop ran a trial; imported results are from other programs."""
    return capabilities(spec.backend).runs


def can_balance_load(backend: str, spec: LoadBalancingSpec) -> bool:
    """Return whether a backend's switches can balance load in this way."""
    return any(spec.route_by in mode.load_balancing for mode in modes_of(backend))


def programs_send(backend: str) -> bool:
    """Return whether programs can send flows on a backend's hosts."""
    return any(mode.programs_send for mode in modes_of(backend))


def transport(
    trial: TrialResult, order: Sequence[str], patterns: Mapping[str, PatternSpec], control: str
) -> Transport:
    """Return the congestion control of hosts and patterns; `control` replaces it unless it is "".

    `order` are the classes that have flows, `patterns` those of them that are declared. Where a
    class of the testbed has a control of its own, the patterns override it.
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
    """Return hosts with another control and its default parameters; TCP's timeout is `base`'s.

    RoCE packets carry as much payload as TCP's do on this testbed, at most the default.
    """
    if control not in roce_controls():
        return dataclasses.replace(base, congestion_control=control, roce=None)
    payload = min(RoceSpec.payload_bytes, max(4, testbed.mss_bytes // 4 * 4))
    roce = Roce().spec(control, "", testbed.nic_rates_bps[0])
    return HostSpec(control, base.min_rto_ns, dataclasses.replace(roce, payload_bytes=payload))


def fabric_of(trial: TrialResult) -> FabricSpec:
    """Return the parent's kind of switches; closloop's where the trial does not say."""
    spec, imported = trial.spec, trial.facts.get("imported")
    if isinstance(imported, Mapping) and imported.get("format") == HPCC_FORMAT:
        # its switches mark packets that leave a queue (`SwitchNode::SwitchNotifyDequeue`)
        return FabricSpec(CLOSLOOP.kind, "departures")
    known = spec.fabric != LINUX or mode_of(spec).is_linux
    return spec.fabric if known else CLOSLOOP


def has_roce(backend: str, host: HostSpec | None) -> bool:
    """Return whether a backend has RoCE NICs for flows of these hosts."""
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
    balancing = spec.load_balancing
    if balancing != ECMP and not can_balance_load(backend, balancing):
        what = f"load balancing by {balancing.kind} ({balancing.route_by})"
        yield Unrepeatable("load-balancing", what)
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
        yield Unrepeatable(
            CONGESTION_CONTROL, "its congestion control, which its files do not name"
        )
    elif control != HostSpec().congestion_control:
        parameters = " with its parameters" if facts.get("hpcc_parameters") else ""
        yield Unrepeatable(CONGESTION_CONTROL, f"congestion control {control}{parameters}")
    for name, what in settings.items():
        # settings of the transport (a window, IRN) are replaced with the congestion control
        yield Unrepeatable(name if name in WITHOUT else CONGESTION_CONTROL, what)


def _sends_like_sockets(driver: DriverSpec) -> bool:
    """Return whether sockets send as this driver did: over TCP, as fast as TCP allows."""
    if driver == SOCKETS:
        return True
    harmless = _LIKE_SOCKETS.get(driver.name)
    return harmless is not None and all(key in harmless for key, _ in driver.options)


def _notes(trial: TrialResult, patterns: Mapping[str, PatternSpec], backend: str) -> Iterator[str]:
    """Yield differences that do not decide results, or that follow from the chosen backend."""
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
        size_bytes = trial.testbed.wire_bytes(1) - 1
        yield f"packets have this testbed's headers ({size_bytes} B with TCP), not the parent's"
