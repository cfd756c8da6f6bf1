"""SIGKILLs of a rack in real time, while it is built, runs and is removed: what do they leave?"""

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

from orchestration.bench import machine
from orchestration.bench.killed_racks import CARDS, KilledRacks
from orchestration.bench.outcome import Figure, Outcome, at_most, bench_folder, environment, zero
from orchestration.core.errors import NotReadyError, TrialError
from orchestration.core.machine import noted_signals
from orchestration.virtual_rack import interfaces
from orchestration.virtual_rack.cleanup import cleanup_items, remove_orphaned
from orchestration.virtual_rack.containers import require_runtime
from orchestration.virtual_rack.image import require_image

KILLS = 50
_MAX_S = 360.0
# What devices are, with the options of `rack up` for that.
KINDS = {"containers": (), "plain": ("--plain",)}
# During what: also while a program runs on a host, and while a campaign does.
PARTS = {
    "up": "it was built",
    "down": "it was removed",
    "exec": "a program ran on a host",
    "run": "a campaign ran",
}
# Racks' lives, in turn: during what they get kills, for as long as they survive them.
_LIVES = (
    ("up", "exec", "down"),
    ("run", "run", "run", "down"),
    ("up",),
    ("exec", "exec", "run", "down"),
)
# A rack that has not survived a kill has gone down by then.
_DIES_S = 0.5
# The kernel tries an address for a second or two before it uses it, longer if it is busy.
_TRIED_S = 10.0

Row = dict[str, Any]


def real_rack_kills(kills: int = KILLS, seed: int = 1) -> Outcome:
    """SIGKILLs while a rack in real time is built, runs and is removed: what is left?"""
    began = time.monotonic()
    kinds, notes = _kinds_here()
    with bench_folder() as folder:
        rows = disturb(folder, kills, seed, kinds=kinds, tell=_tell)
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
            what = f"kills while {name or PARTS[value]} {value if name else ''}".strip()
            yield Figure(what, str(count[value]))
    killed = Counter(row["victim"] for row in rows)
    yield Figure("killed", ", ".join(f"{name} {count}" for name, count in killed.most_common()))
    compared = [row for row in rows if "differs" in row]
    yield Figure("the machine was compared after racks", str(len(compared)))
    cleaned = sum(row["cleaned"] for row in compared)
    yield Figure("of these, after which closloop clean had work", str(cleaned))
    waited = sum(row["waits"] for row in rows)
    yield Figure("commands that waited for what was killed until the rack was down", str(waited))
    yield zero("commands that hung", sum(row["hung"] for row in rows))
    differences = [line for row in compared for line in row["differs"]]
    for subject, found in machine.by_subject(differences).items():
        yield zero(f"differences in {subject}", found)


def _kinds_here() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of devices that this machine takes, and notes about that."""
    try:
        require_runtime()
        require_image()
    except NotReadyError as error:
        return ("plain",), (f"no containers: {error.message}",)
    return tuple(KINDS), ()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def disturb(
    folder: Path,
    kills: int,
    seed: int,
    *,
    lives: Sequence[Sequence[str]] = _LIVES,
    kinds: Sequence[str] = ("plain",),
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Kill processes of racks at moments drawn from a seed; return what each kill left.

    `lives` says during what, of `PARTS`, racks get a kill each, in turn; with one that it does not
    survive a rack's life ends. `kinds` are of `KINDS`, and get a like number of kills. `tell` is
    called with a line on each kill. SIGINT and SIGTERM end it in order, too.

    Raises:
        Interrupted: it was told to end; the rack and what stood for cards are gone.
        TrialError: a rack leaves something without a kill, or does not come up.
    """
    dice = random.Random(seed)
    rows: list[Row] = []
    with (
        noted_signals(lambda: None) as signals,
        environment({"XDG_STATE_HOME": str(folder / "state")}),  # of this user's racks
        _cards(),
        (folder / "log").open("ab") as log,
        ExitStack() as after,
    ):
        parts = [*dict.fromkeys(itertools.chain(*lives))]
        turn, racks, lasts_s = {}, {}, {}
        for kind in kinds:
            turn[kind] = itertools.cycle(lives)
            racks[kind] = KilledRacks(folder, log, KINDS[kind], signals)
            after.callback(_abandon, racks[kind])
            lasts_s[kind] = racks[kind].undisturbed_s(parts)
            racks[kind].end()
            if wrong := racks[kind].left():
                raise TrialError("a rack left something without a kill", "", "\n".join(wrong))
            shown = ", ".join(f"{part} {took:.1f} s" for part, took in lasts_s[kind].items())
            tell(f"{kind}, undisturbed: {shown}")
        while len(rows) < kills:
            had = Counter(row["kind"] for row in rows)
            kind = min(kinds, key=lambda name: had[name])
            racks[kind].forget()
            for row in _one_life(racks[kind], next(turn[kind]), lasts_s[kind], dice):
                rows.append({"kind": kind, **row})
                tell(f"{len(rows)} of {kills}: {_shown(rows[-1])}")
                if len(rows) == kills:
                    break
            rows[-1] |= _end(racks[kind])
            tell(f"  {_said(rows[-1])}")
    return rows


def _one_life(
    racks: KilledRacks, life: Sequence[str], lasts_s: Mapping[str, float], dice: random.Random
) -> Iterator[Row]:
    """Kill processes of one rack as long as it lives."""
    whole = True
    for during in life:
        # without a device, or a process of it, a campaign would end before it has begun
        if whole or during == "down":
            row = racks.kill(during, lasts_s[during], dice)
            whole &= row["victim"] not in ("device", "any")
            yield row
            racks.pause(_DIES_S)
            if not racks.is_up:
                return


def _end(racks: KilledRacks) -> Row:
    """End a rack if it has survived, do as its owner then does, and compare the machine."""
    racks.end()
    cleaned = any(not row.in_use_by for row in cleanup_items())
    if cleaned:
        racks.closloop("clean")
    return {"cleaned": cleaned, "differs": racks.left()}


def _shown(row: Row) -> str:
    waits = ", and the command waited for the rack's end" if row["waits"] else ""
    hung = ", and hung" if row["hung"] else ""
    return (
        f"{row['kind']}, while {PARTS[row['during']]}: {row['victim']} killed after "
        f"{row['after_s']:.2f} s{waits}{hung}"
    )


def _said(row: Row) -> str:
    cleaned = "closloop clean had work; " if row["cleaned"] else ""
    return f"{cleaned}{'; '.join(row['differs']) or 'nothing is left'}"


def _abandon(racks: KilledRacks) -> None:
    """End a rack, and remove what it has left: whatever has happened before."""
    racks.abandon()
    remove_orphaned()


@contextmanager
def _cards() -> Iterator[None]:
    """Make the interfaces that stand for network cards, with a state of their own."""
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
    """Wait until the kernel has tried the cards' addresses, after which there are routes to them.

    On a machine without IPv6 there are none, which takes the whole time.
    """
    deadline = time.monotonic() + _TRIED_S
    while time.monotonic() < deadline:
        said = interfaces.run_command(["ip", "-j", "-6", "route", "show", "table", "local"])
        found = json.loads(said or "[]")
        if {*CARDS} <= {route.get("dev") for route in found if route.get("type") == "local"}:
            return
        time.sleep(0.1)
