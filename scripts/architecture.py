"""Draws the packages in layers, from their imports: docs/pictures/architecture.svg.

The layers are computed from the import statements, as tests/architecture/imports.py reads them: a
package is one layer above the highest one that it imports. A line leads from a package to each one
that it imports, unless it also imports that one through another package. `make reference` draws the
picture again, and a test fails if it is out of date.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
sys.path.insert(0, str(ROOT / "tests" / "architecture"))

from graphs import floors  # noqa: E402
from imports import sources  # noqa: E402

# What each package is for, short enough for its box.
PURPOSES = {
    "agent": "what runs on devices",
    "analysis": "metrics, stamps, reports",
    "backends": "where a trial runs",
    "bench": "the project's claims",
    "calibration": "what a fabric does",
    "campaign": "from a file to trials",
    "cli": "one module a verb",
    "closloop": "the public Python API",
    "cluster": "trials on Ray",
    "collectors": "what is measured",
    "core": "testbed, trial, signals",
    "counterfactuals": "one decision changed",
    "datapath": "C: switches and NICs",
    "device": "SSH, clients of agents",
    "environment": "PettingZoo, Gymnasium",
    "exchange": "others' files",
    "inventory": "testbeds and racks",
    "kernel": "the virtual-time kernel",
    "loop": "observe, act, apply",
    "papers": "papers and fidelity",
    "policies": "learned NIC controls",
    "provision": "preparing racks",
    "render": "tables, pictures, pages",
    "replay": "a run again",
    "results": "a run folder's files",
    "run": "all trials of a campaign",
    "search": "best static settings",
    "session": "one trial on a rig",
    "telemetry": "InfluxDB, Prometheus",
    "traffic": "what is sent",
    "training": "learning",
    "tuners": "what decides",
    "virtual_rack": "a rack to try on",
    "watch": "a run while it runs",
}
# For each package, its step in the list of docs/architecture.md.
STEPS = {
    "cli": "1",
    "campaign": "2",
    "run": "3",
    "traffic": "4",
    "backends": "5",
    "session": "6",
    "loop": "6",
    "tuners": "6",
    "results": "7",
    "analysis": "8",
    "render": "8",
}
# Left out of the picture: the folder of the other packages, and Ansible's files.
LEFT_OUT = ("orchestration", "playbooks")

_BOX = (146, 46)
_STEP_X, _STEP_Y = 162, 92
_LEFT, _TOP = 60, 92
_CORE_COLUMNS = 5
_SIDE_X = _LEFT + _CORE_COLUMNS * _STEP_X + 34
_SIDE_STEP_Y = 62

_STYLE = """
svg { --paper: #ffffff; --ink: #1f2328; --dim: #59636e; --line: #b3bcc6; --core: #e7f0fb;
  --edge: #7fa8d6; --side: #f4efe3; --side-edge: #c9ae72; --band: #f6f8fa; --step: #1f6feb }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --dim: #9198a1; --line: #4a545f; --core: #15283f;
    --edge: #3f6ea5; --side: #2b2514; --side-edge: #7d6a35; --band: #151b23; --step: #388bfd } }
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink) }
.name { font-weight: 600 } .words, .note { font-size: 10.5px; fill: var(--dim) }
.note { font-size: 12px } .head { font-size: 15px; font-weight: 600 }
.core { fill: var(--core); stroke: var(--edge) }
.side { fill: var(--side); stroke: var(--side-edge) }
.band { fill: var(--band) } .import { fill: none; stroke: var(--line); stroke-width: 1.2 }
.step { fill: var(--step) } .number { font-size: 11px; font-weight: 700; fill: #ffffff }
.paper { fill: var(--paper) }
"""


def short(package: str) -> str:
    """Return a package's name without `orchestration.`, the folder that most packages are in."""
    return package.removeprefix("orchestration.")


def read() -> tuple[dict[str, set[str]], dict[str, int], frozenset[str]]:
    """Return what each package imports, its layer, and which packages are beside the core."""
    edges = {
        short(package): {short(other) for other in imported if other not in LEFT_OUT}
        for package, imported in sources(ROOT).packages.items()
        if package not in LEFT_OUT
    }
    return edges, floors(edges), frozenset(_beside_the_core())


def _beside_the_core() -> list[str]:
    """Return the packages that the core must not import, by the contract in .importlinter."""
    text = (ROOT / ".importlinter").read_text(encoding="utf-8")
    contract = text.partition("[importlinter:contract:core]")[2].partition("[importlinter:")[0]
    forbidden = contract.partition("forbidden_modules =")[2].split()
    return [short(name) for name in forbidden]


def picture() -> str:
    """Return the picture as SVG."""
    all_edges, layer, side = read()
    # the public API offers the environment, which is beside the core
    edges = {name: imported - side for name, imported in all_edges.items() if name not in side}
    rows = _rows(edges, layer)
    top = max(rows)
    # `closloop` imports what is below `cli`: moved to the side, its line can be seen
    shift_x = {"closloop": _STEP_X}
    position = {
        name: (
            _LEFT + (column + (_CORE_COLUMNS - len(row)) / 2) * _STEP_X + shift_x.get(name, 0),
            _row_y(top - number),
        )
        for number, row in rows.items()
        for column, name in enumerate(row)
    }
    height = _row_y(top - 1) + _STEP_Y + 20
    width = _SIDE_X + 2 * _STEP_X + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        "<title>The packages of closloop, and what imports what</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(_LEFT, 34, "head", "The core: what runs an experiment"),
        _text(_LEFT, 54, "note", "Imports point down, along the lines. Numbers are the steps of a "
                                 "campaign on its way to a report."),
        _text(_SIDE_X, 34, "head", "Beside the core"),
        _text(_SIDE_X, 54, "note", "They import the core. It never imports them:"),
        _text(_SIDE_X, 70, "note", "entry points find their verbs and parts."),
    ]  # fmt: skip
    for number in rows:
        y = _row_y(top - number) - 14
        parts.append(
            f'<rect class="band" x="{_LEFT - 44}" y="{y}" rx="8" '
            f'width="{_CORE_COLUMNS * _STEP_X + 46}" height="{_BOX[1] + 28}"/>'
        )
        parts.append(_text(_LEFT - 32, y + 42, "note", str(number)))
    core = [name for row in rows.values() for name in row]
    for name in core:
        parts += [_line(position[name], position[other]) for other in sorted(_direct(edges, name))]
    parts += [_box(name, *position[name], "core") for name in core]
    beside = sorted(side & all_edges.keys(), key=lambda name: (layer[name], name))
    for number, name in enumerate(beside):
        x, y = _SIDE_X + number % 2 * _STEP_X, _TOP + number // 2 * _SIDE_STEP_Y
        parts.append(_box(name, x, y, "side"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row_y(from_top: int) -> int:
    return _TOP + from_top * _STEP_Y


def _rows(edges: dict[str, set[str]], layer: dict[str, int]) -> dict[int, list[str]]:
    """Return the core's packages by layer, each near to the packages that it imports."""
    used = sorted({layer[name] for name in edges})
    rows: dict[int, list[str]] = {}
    center: dict[str, float] = {}
    for number, height in enumerate(used, 1):
        row = sorted(name for name in edges if layer[name] == height)

        def key(name: str) -> tuple[float, str]:
            below = [center[other] for other in _direct(edges, name) if other in center]
            return (sum(below) / len(below) if below else 0.5, name)

        row.sort(key=key)
        rows[number] = row
        for column, name in enumerate(row):
            center[name] = (column + 0.5) / len(row)
    return rows


def _direct(edges: dict[str, set[str]], name: str) -> set[str]:
    """Return the packages that a package imports itself, and not also through another one."""
    imported = edges[name]
    return {
        package
        for package in imported
        if not any(package in _below(edges, other) for other in imported - {package})
    }


def _below(edges: dict[str, set[str]], name: str) -> set[str]:
    """Return all packages that a package imports, directly or through others."""
    return edges[name].union(*(_below(edges, other) for other in edges[name]))


def _box(name: str, x: float, y: float, kind: str) -> str:
    width, height = _BOX
    text = (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width}" height="{height}" rx="6"/>'
        + _text(x + 10, y + 20, "name", name)
        + _text(x + 10, y + 36, "words", PURPOSES[name])
    )
    if name in STEPS:
        text += f'<circle class="step" cx="{x + width:g}" cy="{y:g}" r="10"/>'
        text += _text(x + width - 3.2, y + 4, "number", STEPS[name])
    return text


def _line(above: tuple[float, float], below: tuple[float, float]) -> str:
    half = _BOX[0] / 2
    x1, y1, x2, y2 = above[0] + half, above[1] + _BOX[1], below[0] + half, below[1]
    bend = min(34, (y2 - y1) / 2)
    return (
        f'<path class="import" d="M{x1:g} {y1:g} C{x1:g} {y1 + bend:g} '
        f'{x2:g} {y2 - bend:g} {x2:g} {y2:g}"/>'
    )


def _text(x: float, y: float, kind: str, words: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE)
