"""Random campaigns that are killed at random moments: `make soak HOURS=1`, or `--kills 100`.

Each life draws a campaign, runs it undisturbed, then again in another folder while processes are
killed or interrupted, the disk is full, or memory is short; and at last to its end. After each
disturbance all trials that had finished are there as they were, no process and no file is left, and
nothing hung; at the end all files are those of the undisturbed run, to the bit.

It runs in namespaces of its own for processes and mounts. Ctrl-C ends it, with what was found.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
for place in (HERE, HERE.parent / "cluster", HERE.parents[1]):
    sys.path.insert(0, str(place))

from draw import draw_campaign, transport_of  # noqa: E402
from left import be_alone  # noqa: E402
from lives import Campaign, Disk, Row, completed, disturbed, undisturbed  # noqa: E402
from surroundings import beside_a_server, on_nodes, on_racks  # noqa: E402

_DISK_BYTES = 256 << 20


def main() -> int:
    """Soak until the time is over or the kills are made; return 1 if something was found."""
    shown = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--kills", type=int, default=0, help="end after so many; 0: by the time")
    parser.add_argument("--seed", type=int, default=1, help="decides campaigns, victims, moments")
    parser.add_argument("--lives", default=",".join(LIVES), help="their kinds, in turn")
    parser.add_argument("--json", type=Path, help="write every disturbance to this file")
    asked = parser.parse_args()
    if unknown := [name for name in asked.lives.split(",") if name not in LIVES]:
        parser.error(f"there are no lives {unknown[0]!r}; known are {', '.join(LIVES)}")
    try:
        be_alone(Path(__file__).resolve())
    except (OSError, RuntimeError) as error:
        print(f"soak: it needs namespaces of its own: {error}", file=sys.stderr)
        return 3
    rows: list[Row] = []
    try:
        soak(asked, rows)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return say(rows, asked.json)


def soak(asked: argparse.Namespace, rows: list[Row]) -> None:
    """Live one campaign after the other, and add what each disturbance showed to `rows`."""
    ends = time.monotonic() + 3600 * asked.hours
    folder = HERE.parents[1] / "runs" / "soak"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for place, size in ((folder, _DISK_BYTES), (Path("/tmp"), 0), (Path("/dev/shm"), 0)):
        options = f"size={size or '75%'},mode=1777"
        command = ["mount", "-t", "tmpfs", "-o", options, "soak", str(place)]
        subprocess.run(command, check=True)
    life, turn = 0, itertools.cycle(asked.lives.split(","))
    while time.monotonic() < ends and not (asked.kills and len(rows) >= asked.kills):
        life += 1
        kind = next(turn)
        dice = random.Random(f"{asked.seed} {life}")
        kills = dice.randint(1, 4)
        if asked.kills:
            kills = min(kills, asked.kills - len(rows))
        place = folder / str(life)
        place.mkdir()
        began = len(rows)
        for row in LIVES[kind](f"{life} {kind}", place, kills, dice):
            rows.append(row)
            tell(row)
        if not any(row.wrong for row in rows[began:]):
            shutil.rmtree(place)


def drawn(backend: str, name: str, folder: Path, kills: int, dice: random.Random) -> Iterator[Row]:
    """Live one campaign, which the seed and the number of its life decide."""
    file = draw_campaign(dice, backend, folder)
    name = f"{name} {transport_of(file)}"
    reference, takes_s, wrong = undisturbed(Campaign(file, folder / "undisturbed"))
    if wrong:
        yield Row(name, "nobody", 0.0, wrong=wrong)
        return
    campaign = Campaign(file, folder / "runs")
    yield from disturbed(name, campaign, reference, takes_s, kills, dice, Disk(folder.parent))
    if wrong := completed(campaign, reference):
        yield Row(name, "nobody: the last run", 0.0, wrong=wrong)


LIVES: dict[str, Callable[[str, Path, int, random.Random], Iterator[Row]]] = {
    "emulated": partial(drawn, "emulated"),
    "fluid": partial(drawn, "fluid"),
    "simulated": partial(drawn, "simulated"),
    "server": beside_a_server,
    "nodes": on_nodes,
    "racks": on_racks,
}


def tell(row: Row) -> None:
    """Say how one disturbance ended."""
    what = f"{row.life}: {row.victim} after {row.after_s:.1f} s, exit code {row.exit_code}"
    print(f"{what}, {row.finished} finished: {'; '.join(row.wrong) or 'well'}", flush=True)
    if row.said:
        print("  | " + row.said.replace("\n", "\n  | "), flush=True)


def say(rows: list[Row], file: Path | None) -> int:
    """Say what was found in all; return the exit code."""
    victims = Counter(row.victim for row in rows)
    wrong = [row for row in rows if row.wrong]
    print(f"\n{len(rows)} disturbances: ", end="")
    print(", ".join(f"{name} {count}" for name, count in victims.most_common()))
    print(f"after {len(wrong)} of them something was wrong")
    if file is not None:
        file.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
