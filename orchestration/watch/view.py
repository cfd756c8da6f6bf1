"""Renders the live view of a run as lines of text, for a screen of 80 by 24 characters or more.

Heights of bars carry the meaning and colours repeat it, so the view is readable without colours.
"""

from __future__ import annotations

import math

from rich.text import Text

from collectors.snapshot import KnobChange
from orchestration.core.knobs import KNOBS
from orchestration.core.records import Floats
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_size
from orchestration.render.numbers import clock_text
from orchestration.run.state import RunState, TrialState, status_line
from orchestration.watch.devices import align_columns, device_lines, device_tables
from orchestration.watch.heatmap import FULL, UNKNOWN, HeatMap, MapRow, lay_out, level
from orchestration.watch.ports import PortMetrics, fullest_ports, kmax_bytes, port_metrics

_BLOCKS, _ASCII = "·▁▂▃▄▅▆▇█", ".1234567#"
_BAR, _ASCII_BAR = ("━", "─"), ("#", "-")
# Okabe and Ito's colours: distinct for colour-blind readers, on dark and light backgrounds.
_STYLES = ("dim", *["#0072b2"] * 2, *["#56b4e9"] * 3, *["#e69f00"] * 2, "bold #d55e00")
_REMARK_STYLES = {"invalid": "bold #d55e00", "failed": "bold #d55e00", "warning": "#e69f00"}
_MAX_TRIALS, _MAX_PORTS, _MAX_CHANGES, _MAX_REMARKS, _MAX_DEVICES = 4, 6, 3, 3, 5
# With this many lines for the fabric or more, there are also tables of pauses, buffers and hosts.
_ROOM_FOR_TABLES = 34
_FULL_LINK = 0.99
_BAR_WIDTH = 12


def view(
    state: RunState,
    shown: TrialState | None,
    width: int,
    height: int,
    *,
    keys: str = "",
    ascii_only: bool = False,
    whole: bool = False,
) -> list[Text]:
    """Return at most `height` lines of at most `width` columns that show the run's state.

    `shown` is the trial whose fabric is drawn. It may have ended. `keys` is the last line. With
    `whole`, names and texts are not cut, and lines may be longer.
    """
    renderer = _Renderer(width, ascii_only, whole)
    head = renderer.head(state)
    trials = renderer.trials(state, shown)
    remarks = renderer.remarks(state, shown)
    foot = [Text(keys, style="dim")] if keys else []
    fabric: list[Text] = []
    if shown is not None and shown.snapshot is not None:
        room = height - len(head) - len(trials) - len(remarks) - len(foot) - 1
        fabric = renderer.fabric(shown, room)
    elif not state.ended:
        fabric = [Text("waiting for the first reading of a trial", style="dim")]
    lines = [*head, *trials, Text(), *fabric, *remarks]
    lines = [*lines[: max(0, height - len(foot))], *foot]
    for line in () if whole else lines:
        line.truncate(width, overflow="crop" if ascii_only else "ellipsis")
    return lines


class _Renderer:
    """Draws the parts of the view for one width and one character set."""

    def __init__(self, width: int, ascii_only: bool, whole: bool) -> None:
        self._width = width
        self._whole = whole
        self._levels = _ASCII if ascii_only else _BLOCKS
        self._bars = _ASCII_BAR if ascii_only else _BAR
        self._arrow, self._to = (">", "->") if ascii_only else ("▸", "→")
        self._more = "~" if ascii_only else "…"

    def head(self, state: RunState) -> list[Text]:
        """Return the lines on the run: its progress, its duration, and how it ended."""
        line = Text(f"{state.name}: {status_line(state.counts, state.now_s)}", style="bold")
        if state.ended:
            line = Text(f"{state.name} {state.ended}: ", style="bold")
            line.append(_result(state))
        ended = state.counts.done + state.counts.failed
        return [line, self._bar(ended, state.counts.trials, self._width)]

    def trials(self, state: RunState, shown: TrialState | None) -> list[Text]:
        """Return one line per running trial, and one for the shown trial if it has ended."""
        running = list(state.trials)
        if shown is not None and all(trial.id != shown.id for trial in running):
            running.append(shown)
        if len(running) > _MAX_TRIALS:
            last = running[-_MAX_TRIALS:]
            if shown is not None and all(trial.id != shown.id for trial in last):
                last[0] = shown
            running = last
        room = max((len(trial.id) for trial in running), default=0)
        room = room if self._whole else min(room, max(10, self._width - 50))
        return [self._trial_line(trial, state, trial is shown, room) for trial in running]

    def fabric(self, trial: TrialState, room: int) -> list[Text]:
        """Return the heat map, the fullest ports and the tuner in at most `room` lines."""
        assert trial.snapshot is not None
        metrics = port_metrics(trial.testbed, trial.snapshot)
        arguments = (trial.testbed, trial.snapshot, self._width)
        devices = device_lines(*arguments, self._to)
        if room >= _ROOM_FOR_TABLES:
            devices += device_tables(*arguments, _MAX_DEVICES, self._to)
        changes = self._tuner_lines(trial, _MAX_CHANGES if room >= 22 else 1)
        below = [*devices, self._marked_line(trial, metrics), *changes]
        ports = min(_MAX_PORTS, max(0, (room - len(below)) // 4 - 1))
        table = self._ports_table(trial, metrics, ports) if ports else []
        # three lines are two of legend, and an empty one below the map
        left = room - len(below) - len(table) - 3
        heat_map = self._map_lines(trial.testbed, metrics, max(2, left))
        return [*heat_map, Text(), *table, *below]

    def remarks(self, state: RunState, shown: TrialState | None) -> list[Text]:
        """Return lines on the problems of the shown trial and of earlier trials."""
        lines = []
        if shown is not None and shown.snapshot is not None:
            snapshot = shown.snapshot
            dropped = int(snapshot.dropped_packets.clip(min=0).sum())
            if dropped:
                lines.append(self._remark_line("warning", f"{shown.id}: {dropped} packets dropped"))
            if snapshot.late_samples:
                text = f"{shown.id}: {snapshot.late_samples} of {snapshot.samples} readings late"
                lines.append(self._remark_line("warning", text))
        last = state.remarks[-_MAX_REMARKS:]
        lines += [self._remark_line(word, f"{trial}: {text}") for trial, word, text in last]
        if len(state.remarks) > len(last):
            lines.append(Text(f"and {len(state.remarks) - len(last)} earlier ones", style="dim"))
        return lines

    def _remark_line(self, word: str, text: str) -> Text:
        return Text.assemble((word, _REMARK_STYLES[word]), " ", " ".join(text.split()))

    def _trial_line(self, trial: TrialState, state: RunState, is_shown: bool, room: int) -> Text:
        snapshot, end_ns = trial.snapshot, trial.spec.duration_ns
        name = trial.id if len(trial.id) <= room else trial.id[: room - 1] + self._more
        line = Text(f"{self._arrow if is_shown else ' '} {name:<{room}} ")
        line.stylize("bold" if is_shown else "")
        t_ns = snapshot.t_ns if snapshot else 0
        line.append_text(self._bar(min(t_ns, end_ns), end_ns, _BAR_WIDTH))
        over = ", draining" if t_ns >= end_ns else ""
        line.append(f" {format_duration(t_ns, 1)}/{format_duration(end_ns)}{over}")
        done = f"{snapshot.flows_done}/" if snapshot and snapshot.flows_done >= 0 else ""
        line.append(f"  {done}{trial.flows} flows")
        if all(trial.id != running.id for running in state.trials):
            line.append("  ended")
        return line

    def _bar(self, value: float, total: float, width: int) -> Text:
        full = round(width * value / total) if total else 0
        done, left = self._bars
        return Text.assemble((done * full, "#56b4e9"), (left * (width - full), "dim"))

    def _map_lines(self, testbed: Testbed, metrics: PortMetrics, room: int) -> list[Text]:
        heat_map = lay_out(testbed, self._width, room)
        lines = [line for row in heat_map.rows for line in self._row_lines(row, heat_map, metrics)]
        return [*lines, *self._legend_lines(heat_map, metrics)]

    def _row_lines(self, row: MapRow, heat_map: HeatMap, metrics: PortMetrics) -> list[Text]:
        gap = "  "
        lines = []
        if any(block.name for block in row.blocks):
            names = gap.join(f"{block.name:<{block.width}}" for block in row.blocks)
            lines.append(Text(" " * heat_map.margin + names, style="dim"))
        for letter, label, values in (
            ("q", row.tier, metrics.fill),
            ("u", "", metrics.utilisation / _FULL_LINK),
        ):
            line = Text(f"{label:<{heat_map.margin - 2}}{letter} ")
            for index, block in enumerate(row.blocks):
                line.append(gap if index else "")
                for cell in block.cells:
                    line.append_text(self._cell(level(cell, values)))
                line.append(" " * (block.width - len(block.cells)))
            lines.append(line)
        return lines

    def _cell(self, height: int) -> Text:
        if height == UNKNOWN:
            return Text("?", style="dim")
        return Text(self._levels[height], style=_STYLES[height])

    def _legend_lines(self, heat_map: HeatMap, metrics: PortMetrics) -> list[Text]:
        scale = Text()
        for height in range(FULL + 1):
            scale.append_text(self._cell(height))
        cell_is = "port" if heat_map.cell_is_port else "device, its highest port"
        more = f"; {heat_map.left_out} devices do not fit" if heat_map.left_out else ""
        # rounded, because readings begin some ns late: 1 ms shall be printed, not 1000 us
        window = format_duration(round(metrics.window_ns, -4), 1)
        return [
            Text.assemble(
                (f"q mean queue over {window}, of Kmax ", "dim"),
                scale,
                (" at Kmax or over", "dim"),
            ),
            Text(
                f"u use of the link, up to its line rate; a cell is a {cell_is}{more}", style="dim"
            ),
        ]

    def _ports_table(self, trial: TrialState, metrics: PortMetrics, count: int) -> list[Text]:
        testbed, per_port = trial.testbed, trial.testbed.queues_per_port
        assert trial.snapshot is not None
        limits = kmax_bytes(trial.snapshot)
        heads = ("fullest queues", "now", "longest", "Kmax", "link", "marked")
        rows: list[tuple[str, ...]] = []
        for number in fullest_ports(metrics, count):
            port = testbed.switch_ports[number]
            kmax = limits[number * per_port : (number + 1) * per_port].max()
            rows.append(
                (
                    f"{port.device}:{port.name} {self._to} {testbed.peer_device(port).name}",
                    _size(metrics.queue_bytes[number]),
                    _size(metrics.peak_bytes[number]),
                    format_size(int(kmax), 1) if kmax > 0 else "none",
                    _percent(metrics.utilisation[number]),
                    _percent(metrics.marked_share[number]),
                )
            )
        if not rows:
            return [Text("all queues are empty", style="dim")]
        head, *lines = align_columns([heads, *rows])
        return [Text(head, style="dim"), *(Text(line) for line in lines)]

    def _marked_line(self, trial: TrialState, metrics: PortMetrics) -> Text:
        """Return the line on marked and dropped packets, summed over all ports."""
        assert trial.snapshot is not None
        marked, sent = _sum(metrics.marked_packets), _sum(metrics.sent_packets)
        share = f", {100 * marked / sent:.1f} % of those sent" if marked and sent else ""
        text = "marks unknown" if marked is None else f"{marked:.0f} packets marked{share}"
        dropped = _sum(metrics.dropped_packets)
        text += f", in all {dropped:.0f} dropped" if dropped else ", none dropped"
        return Text(text if dropped is not None else text.removesuffix(", none dropped"))

    def _tuner_lines(self, trial: TrialState, count: int) -> list[Text]:
        assert trial.snapshot is not None
        snapshot, name = trial.snapshot, trial.spec.tuner.name
        if not snapshot.changes:
            return [Text(f"{name}: no action so far")]
        actions = "action" if snapshot.changes == 1 else "actions"
        lines: list[Text] = []
        for change in snapshot.recent[-count:][::-1]:
            start = f"{name}: {snapshot.changes} {actions}; " if not lines else ""
            lines.append(Text(f"{start}{change_text(change)}"))
        return lines


def change_text(change: KnobChange) -> str:
    """Return a change as text, such as `4.1ms: 40 queues Kmin 5KB, Kmax 200KB..1MB, Pmax 1 %`."""
    knob = KNOBS[change.knob]
    parts = []
    for column in knob.columns:
        low, high = (_value(number, column.unit) for number in change.ranges[column.name])
        percent = " %" if column.unit == "1" else ""
        parts.append(f"{column.short.capitalize()} {_range(low, high)}{percent}")
    targets = knob.scope if change.targets == 1 else f"{knob.scope}s"
    when = format_duration(change.applied_ns, 1) if change.applied_ns > 0 else "start"
    return f"{when}: {change.targets} {targets} {', '.join(parts)}"


def _value(number: float, unit: str) -> str:
    match unit:
        case "B":
            return format_size(number, 0)
        case "ns":
            return format_duration(int(number), 1)
        case "1":
            return f"{100 * number:.3g}"
    return f"{number:.6g} {unit}"


def _result(state: RunState) -> str:
    counts = state.counts
    parts = [f"{counts.done} of {counts.trials} trials done"]
    parts += [f"{counts.invalid} invalid"] if counts.invalid else []
    parts += [f"{counts.failed} failed"] if counts.failed else []
    parts += [f"{clock_text(counts.spent_s)} of trials' wall time"] if counts.spent_s else []
    return ", ".join(parts)


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low}..{high}"


def _size(value: float) -> str:
    return "?" if math.isnan(value) else format_size(float(value), 1)


def _percent(value: float) -> str:
    return "?" if math.isnan(value) else f"{100 * value:.0f} %"


def _sum(values: Floats) -> float | None:
    known = values[values == values]
    return float(known.sum()) if len(known) else None
