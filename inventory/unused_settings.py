"""Settings of a trial that change nothing in it, each with the reason.

A campaign may set what nothing in its trials uses: parameters of a congestion control that no flow
has, pauses that no class sends, a choice among paths where there is one. Arms that differ in such
settings only are the same experiment. What no trial of any campaign could use is refused when the
campaign is read (`orchestration.campaign`). ECN thresholds that no flow responds to are the subject
of `orchestration.campaign.unresponsive`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from inventory.routing import attachment, flow_controls, next_hops
from orchestration.core.congestion import mark_answer, roce_controls
from orchestration.core.load_balancing import ECMP
from orchestration.core.parts import SwitchSpec
from orchestration.core.records import Schedule
from orchestration.core.roce import CNP_INTERVAL, DCQCN, MLX5_DEFAULTS
from orchestration.core.topology import Port, Testbed
from orchestration.core.trial import TCP, TrialSpec

_NextHops = Mapping[str, Mapping[str, tuple[Port, ...]]]


@dataclass(frozen=True)
class UnusedSetting:
    """A setting, the reason why it has no effect, with its figure, and the remedy, as text."""

    name: str
    why: str
    remedy: str

    @property
    def text(self) -> str:
        """A sentence with reason, setting and remedy; the reason ends at the first colon."""
        return f"{self.why}: {self.name} changes nothing; {self.remedy}"


def unused_settings(
    trial: TrialSpec, testbed: Testbed, schedule: Callable[[], Schedule]
) -> tuple[UnusedSetting, ...]:
    """Return the settings that change nothing in a trial.

    `schedule` returns its flows; it is called only where they matter. Settings that another level
    of a factor needs are left out: a campaign that compares dcqcn with swift gives both the
    parameters of dcqcn. A trial's labels show that.
    """
    controls = dict.fromkeys(flow_controls(testbed, trial))
    found = [*_lossless(testbed), *_one_path(trial, testbed, schedule)]
    if not set(map(str, trial.cell.values())) & controls.keys():
        found += _of_other_controls(trial, list(controls))
    return tuple(found)


def _of_other_controls(trial: TrialSpec, controls: list[str]) -> Iterator[UnusedSetting]:
    roce = trial.host.roce
    if roce is not None and roce.control != DCQCN:
        used = () if mark_answer(roce.control) == "never" else (CNP_INTERVAL,)
        names = [k for k, v in roce.dcqcn if v != MLX5_DEFAULTS[k] and k not in used]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield UnusedSetting(
                f"roce.dcqcn ({', '.join(names[:3])}{more})",
                f"RoCE flows are under {roce.control}",
                f"remove it, or use `congestion_control: {DCQCN}`",
            )
    all_roce = bool(controls) and set(controls) <= set(roce_controls())
    if all_roce and trial.host.min_rto_ns != TCP.min_rto_ns:
        under = " and ".join(controls)
        yield UnusedSetting(
            "min_rto", f"no flow is TCP, all are under {under}", "set `roce: {timeout: …}`"
        )


def _lossless(testbed: Testbed) -> Iterator[UnusedSetting]:
    """Yield settings of pauses on switches without a lossless class."""
    switch = testbed.switch
    if switch is None or switch.lossless:
        return
    default = SwitchSpec(switch.buffer_bytes, switch.alpha)
    changed = {
        "headroom": switch.headroom_bytes != default.headroom_bytes,
        "xoff": switch.xoff_bytes != default.xoff_bytes,
        "xon_offset": switch.xon_offset_bytes not in (0, 2 * testbed.frame_bytes),
        "quanta": switch.quanta != default.quanta,
        "watchdog": (switch.detect_ns, switch.restore_ns, switch.action)
        != (default.detect_ns, default.restore_ns, default.action),
    }
    names = [name for name, is_changed in changed.items() if is_changed]
    if names:
        yield UnusedSetting(
            f"switch.{' and switch.'.join(names)}",
            f"testbed {testbed.name} has 0 lossless classes, and only these send pauses",
            "add `pfc` to the testbed's switch, or remove it",
        )


def _one_path(
    trial: TrialSpec, testbed: Testbed, schedule: Callable[[], Schedule]
) -> Iterator[UnusedSetting]:
    """Yield a load balancing that has nothing to choose: each flow has one path."""
    if trial.load_balancing == ECMP or trial.faults:
        return
    flows = schedule()
    pairs = np.unique(np.stack([flows.src, flows.dst]), axis=1).T.tolist()
    hops = next_hops(testbed)
    hosts = testbed.hosts
    if pairs and all(_has_one_path(testbed, hops, hosts[a], hosts[b]) for a, b in pairs):
        count = f"each of the {len(pairs)} pairs" if len(pairs) > 1 else "the one pair"
        yield UnusedSetting(
            f"load_balancing: {trial.load_balancing.kind}",
            f"there is 1 path between {count} of hosts that send",
            "send between hosts of different leaves, or leave it out",
        )


def _has_one_path(testbed: Testbed, hops: _NextHops, src: str, dst: str) -> bool:
    near, far = attachment(testbed, src), attachment(testbed, dst)
    if (len(near), len(far)) != (1, 1):
        return False
    here, target = near[0], far[0]
    while here != target:
        ports = hops[here].get(target, ())
        if len(ports) != 1:
            return False
        here = testbed.ports[ports[0].peer].device
    return True
