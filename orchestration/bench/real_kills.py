"""Kills processes of racks in real time by SIGKILL, and finds out what is left on the machine."""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestration.bench import machine_state
from orchestration.bench.killed_racks import CARDS, KilledRacks
from orchestration.bench.outcome import Figure, Outcome, at_most, bench_folder, environment, zero
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.machine import deferred_signals
from orchestration.virtual_rack import interfaces
from orchestration.virtual_rack.cleanup import cleanup_items, remove_orphaned
from orchestration.virtual_rack.containers import require_runtime
from orchestration.virtual_rack.image import require_image

KILLS = 50
_MAX_S = 360.0
# The kinds of devices -> the options of `rack up` for that kind.
KINDS = {"containers": (), "plain": ("--plain",)}
# The parts of a rack's life in which a process is killed -> the part in words.
PARTS = {
    "up": "it was built",
    "down": "it was removed",
    "exec": "a program ran on a host",
    "run": "a campaign ran",
}
# The lives of racks, in rotation: during which parts a process is killed, as long as the rack is
# up.
_LIVES = (
    ("up", "exec", "down"),
    ("run", "run", "run", "down"),
    ("up",),
    ("exec", "exec", "run", "down"),
)
# How long a rack that does not survive a kill takes to go down.
_DOWN_WITHIN_S = 0.5
# The kernel checks an IPv6 address for a second or two before it uses it, longer if it is busy.
_ADDRESSES_WITHIN_S = 10.0

Row = dict[str, Any]


def real_rack_kills(kills: int = KILLS, seed: int = 1) -> Outcome:
    """Processes of racks in real time killed by SIGKILL: what is left on the machine?"""
    began = time.monotonic()
    kinds, notes = _kinds_here()
    with bench_folder() as folder:
        rows = disturb(folder, kills, seed, kinds=kinds, report=_report)
    wall_s = time.monotonic() - began
    return Outcome(
        f"{kills} SIGKILLs while racks in real time were built, ran and were removed",
        (*_figures(rows, kinds), at_most("wall time", wall_s, _MAX_S, 0, " s")),
        (
            *notes,
            "interfaces are compared with offloads and settings; of control groups and BPF objects "
            "those count that have come and that no process has; processes and namespaces are "
            "those of the rack",
            f"each rack has two interfaces of the machine, {' and '.join(CARDS)}, a veth pair in "
            "place of two cards",
        ),
        {"rows": rows},
    )


def _figures(rows: Sequence[Row], kinds: Sequence[str]) -> Iterator[Figure]:
    for name, key, values in (("devices were", "kind", kinds), ("", "during", PARTS)):
        count = Counter(row[key] for row in rows)
        for value in values:
            label = f"kills while {name or PARTS[value]} {value if name else ''}".strip()
            yield Figure(label, str(count[value]))
    killed = Counter(row["victim"] for row in rows)
    yield Figure("killed", ", ".join(f"{name} {count}" for name, count in killed.most_common()))
    compared = [row for row in rows if "differs" in row]
    yield Figure(
        "racks after which the machine was compared with its state before", str(len(compared))
    )
    cleaned = sum(row["cleaned"] for row in compared)
    yield Figure("of these, racks after which closloop clean had something to remove", str(cleaned))
    waited = sum(row["waits"] for row in rows)
    yield Figure("commands that waited for a killed process until the rack was down", str(waited))
    yield zero("commands that hung", sum(row["hung"] for row in rows))
    differences = [line for row in compared for line in row["differs"]]
    for subject, found in machine_state.count_by_subject(differences).items():
        yield zero(f"differences in {subject}", found)


def _kinds_here() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of devices that this machine can run, and notes on missing ones."""
    try:
        require_runtime()
        require_image()
    except NotReadyError as error:
        return ("plain",), (f"no containers: {error.message}",)
    return tuple(KINDS), ()


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def disturb(
    folder: Path,
    kills: int,
    seed: int,
    *,
    lives: Sequence[Sequence[str]] = _LIVES,
    kinds: Sequence[str] = ("plain",),
    report: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Kill processes of racks at random moments; return a row on each kill.

    Args:
        folder: where the racks' files and logs are written.
        kills: the number of kills.
        seed: that of the random moments and processes.
        lives: the parts, of `PARTS`, in which a process of a rack is killed, one list per rack, in
            rotation. If a rack does not survive a kill, its life ends with it.
        kinds: the kinds of devices, of `KINDS`. Each gets about the same number of kills.
        report: called with a line on each kill.

    The last row on a rack has `differs`, the differences of the machine after it. SIGINT and
    SIGTERM end the benchmark in order.

    Raises:
        Interrupted: a signal ended the benchmark; the rack and its interfaces are removed.
        TrialError: a rack does not come up, or leaves something although nothing was killed.
    """
    dice = random.Random(seed)
    rows: list[Row] = []
    with (
        deferred_signals(lambda: None) as signals,
        environment({"XDG_STATE_HOME": str(folder / "state")}),  # not this user's own racks
        _cards(),
        (folder / "log").open("ab") as log,
        ExitStack() as after,
    ):
        parts = [*dict.fromkeys(itertools.chain(*lives))]
        lives_of, racks, lasts_s = {}, {}, {}
        for kind in kinds:
            lives_of[kind] = itertools.cycle(lives)
            racks[kind] = KilledRacks(folder, log, KINDS[kind], signals)
            after.callback(_abandon, racks[kind])
            lasts_s[kind] = racks[kind].durations_s(parts)
            racks[kind].end()
            if problems := racks[kind].differences():
                raise TrialError("a rack left something without a kill", "", "\n".join(problems))
            shown = ", ".join(f"{part} {took:.1f} s" for part, took in lasts_s[kind].items())
            report(f"{kind}, undisturbed: {shown}")
        while len(rows) < kills:
            kills_of = Counter(row["kind"] for row in rows)
            kind = min(kinds, key=lambda name: kills_of[name])
            racks[kind].start_next()
            for row in _one_life(racks[kind], next(lives_of[kind]), lasts_s[kind], dice):
                rows.append({"kind": kind, **row})
                report(f"{len(rows)} of {kills}: {_kill_text(rows[-1])}")
                if len(rows) == kills:
                    break
            rows[-1] |= _end(racks[kind])
            report(f"  {_outcome_text(rows[-1])}")
    return rows


def _one_life(
    racks: KilledRacks, life: Sequence[str], lasts_s: Mapping[str, float], dice: random.Random
) -> Iterator[Row]:
    """Kill processes of one rack, one in each part of `life`, as long as the rack is up."""
    complete = True
    for during in life:
        # a campaign would not start on a rack that lacks a device, or a process of one
        if complete or during == "down":
            row = racks.kill(during, lasts_s[during], dice)
            complete &= row["victim"] not in ("device", "any")
            yield row
            racks.pause(_DOWN_WITHIN_S)
            if not racks.is_up:
                return


def _end(racks: KilledRacks) -> Row:
    """End a rack if it is up, run `closloop clean` if it has work, and compare the machine."""
    racks.end()
    cleaned = any(not row.in_use_by for row in cleanup_items())
    if cleaned:
        racks.closloop("clean")
    return {"cleaned": cleaned, "differs": racks.differences()}


def _kill_text(row: Row) -> str:
    waits = ", and the command waited for the rack's end" if row["waits"] else ""
    hung = ", and hung" if row["hung"] else ""
    return (
        f"{row['kind']}, while {PARTS[row['during']]}: {row['victim']} killed after "
        f"{row['after_s']:.2f} s{waits}{hung}"
    )


def _outcome_text(row: Row) -> str:
    cleaned = "closloop clean had work; " if row["cleaned"] else ""
    return f"{cleaned}{'; '.join(row['differs']) or 'nothing is left'}"


def _abandon(racks: KilledRacks) -> None:
    """End a rack and remove what it has left, whatever has happened before."""
    racks.abandon()
    remove_orphaned()


@contextmanager
def _cards() -> Iterator[None]:
    """Create the interfaces that stand for network cards, with settings other than defaults."""
    command = interfaces.run_command
    command(["ip", "link", "add", CARDS[0], "type", "veth", "peer", "name", CARDS[1]])
    try:
        words = ("mtu", "1400", "txqueuelen", "77", "alias", "a card", "up")
        command(["ip", "link", "set", "dev", CARDS[0], *words])
        command(["ip", "link", "set", "dev", CARDS[1], "up"])
        Path(f"/proc/sys/net/ipv4/conf/{CARDS[0]}/rp_filter").write_text("2")
        _await_addresses()
        yield
    finally:
        with suppress(RuntimeError):
            command(["ip", "link", "del", CARDS[0]])


def _await_addresses() -> None:
    """Wait until the kernel has checked the cards' IPv6 addresses and made routes to them.

    On a machine without IPv6 there are no such routes, and the whole time passes.
    """
    deadline = time.monotonic() + _ADDRESSES_WITHIN_S
    while time.monotonic() < deadline:
        output = interfaces.run_command(["ip", "-j", "-6", "route", "show", "table", "local"])
        found = json.loads(output or "[]")
        if {*CARDS} <= {route.get("dev") for route in found if route.get("type") == "local"}:
            return
        time.sleep(0.1)
