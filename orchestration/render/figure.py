"""Figures for plotly.js as JSON: panels one below the other, traces, notes.

plotly.py writes the same JSON, but importing it and its checks of each attribute take longer than
the rest of a report. Tests check the reports' figures with plotly.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# A line, points, or a heat map, as attributes of plotly.js.
Trace = dict[str, Any]
# numpy dtype -> plotly.js dtype
_NUMBERS = {
    **{f"int{8 * size}": f"i{size}" for size in (1, 2, 4)},
    **{f"uint{8 * size}": f"u{size}" for size in (1, 2, 4)},
    **{f"float{8 * size}": f"f{size}" for size in (4, 8)},
}


def scatter(**attributes: Any) -> Trace:
    """Return a trace of points, or of a line through them."""
    return {"type": "scatter", **attributes}


def heatmap(**attributes: Any) -> Trace:
    """Return a trace of coloured cells in a grid."""
    return {"type": "heatmap", **attributes}


class Figure:
    """A figure of one or more panels, one below the other, with a common x axis.

    `heights` are the panels' shares of the height; `gap` is the share between two panels. With
    `same_y` all panels have the same y axis. A panel's number is its `row`, from 1 at the top.
    Without a row, a trace goes to the first panel, and an annotation is positioned by its own
    attributes.
    """

    def __init__(
        self, rows: int = 1, *, heights: Sequence[float] = (), gap: float = 0, same_y: bool = False
    ) -> None:
        self.data: list[Trace] = []
        self.layout: dict[str, Any] = {}
        self._rows = rows
        shares = np.array(heights or [1.0] * rows, dtype=float)
        sizes = (1 - gap * (rows - 1)) * shares / shares.sum()
        for row in range(1, rows + 1):
            bottom = max(0.0, float(sizes[row:].sum()) + gap * (rows - row))
            top = min(1.0, bottom + float(sizes[row - 1]))
            x: dict[str, Any] = {"anchor": _axis("y", row), "domain": [0.0, 1.0]}
            y: dict[str, Any] = {"anchor": _axis("x", row), "domain": [bottom, top]}
            if row < rows:
                x |= {"matches": _axis("x", rows), "showticklabels": False}
                y |= {"matches": _axis("y", rows)} if same_y else {}
            self.layout |= {_axis("xaxis", row): x, _axis("yaxis", row): y}

    def add_trace(self, trace: Trace, row: int | None = None) -> None:
        """Add a trace to a panel."""
        panel = {} if row is None else {"xaxis": _axis("x", row), "yaxis": _axis("y", row)}
        self.data.append({**trace, **panel})

    def update_layout(self, changes: Mapping[str, Any]) -> None:
        """Change the layout; mappings are merged."""
        _merge(self.layout, changes)

    def update_xaxes(self, row: int | None = None, **changes: Any) -> None:
        """Change the x axis of one panel, or of all."""
        self._update_axes("xaxis", row, changes)

    def update_yaxes(self, row: int | None = None, **changes: Any) -> None:
        """Change the y axis of one panel, or of all."""
        self._update_axes("yaxis", row, changes)

    def add_annotation(self, row: int | None = None, **attributes: Any) -> None:
        """Write a text; with a row, `xref` and `yref` (`x`, `x domain`, ...) are of that panel."""
        if row is not None:
            for ref in ("xref", "yref"):
                name, *rest = attributes[ref].split()
                attributes[ref] = " ".join([_axis(name, row), *rest])
        self.layout.setdefault("annotations", []).append(attributes)

    def add_shape(self, **attributes: Any) -> None:
        """Draw a shape."""
        self.layout.setdefault("shapes", []).append(attributes)

    def add_vline(self, x: float, line: Mapping[str, Any]) -> None:
        """Draw a vertical line across each panel."""
        for row in range(1, self._rows + 1):
            refs = {"xref": _axis("x", row), "yref": f"{_axis('y', row)} domain"}
            self.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, **refs, line=line)

    def add_hline(self, y: float, line: Mapping[str, Any]) -> None:
        """Draw a horizontal line across each panel."""
        for row in range(1, self._rows + 1):
            refs = {"xref": f"{_axis('x', row)} domain", "yref": _axis("y", row)}
            self.add_shape(type="line", x0=0, x1=1, y0=y, y1=y, **refs, line=line)

    def top(self, row: int) -> float:
        """Return the position of a panel's upper edge, as a share of the height."""
        return float(self.layout[_axis("yaxis", row)]["domain"][1])

    def to_json(self) -> str:
        """Return the JSON for plotly.js. NaN and infinity become null."""
        shown = _plain({"data": self.data, "layout": self.layout})
        text = json.dumps(shown, default=lambda value: value.tolist(), separators=(",", ":"))
        if "NaN" in text or "Infinity" in text:  # JSON has neither
            read = json.loads(text, parse_constant=lambda _: None)
            text = json.dumps(read, separators=(",", ":"))
        return text

    def _update_axes(self, name: str, row: int | None, changes: Mapping[str, Any]) -> None:
        for number in range(1, self._rows + 1) if row is None else (row,):
            _merge(self.layout[_axis(name, number)], changes)


def _axis(name: str, row: int) -> str:
    """Return plotly.js' name of a panel's axis: that of the first has no number."""
    return name if row == 1 else f"{name}{row}"


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        elif name == "title" and isinstance(value, str):
            into[name] = {"text": value}
        else:
            into[name] = value


def _plain(value: Any) -> Any:
    """Return the value with arrays in base64, which is short and fast to parse."""
    if isinstance(value, Mapping):
        return {
            name: list(inner) if name == "range" else _plain(inner) for name, inner in value.items()
        }
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [_plain(inner) for inner in value]
    return _packed(value) if isinstance(value, np.ndarray) else value


def _packed(values: np.ndarray) -> Any:
    if values.dtype == np.int64 and values.size:  # plotly.js has no 64-bit integer arrays
        ends = values.min(), values.max()
        kinds = [np.dtype(kind) for kind in ("int8", "int16", "int32")]
        fits = [k for k in kinds if np.iinfo(k).min <= ends[0] and ends[1] <= np.iinfo(k).max]
        values = values.astype(fits[0]) if fits else values
    kind = _NUMBERS.get(values.dtype.name)
    if kind is None or values.ndim != 1 or not values.size:
        return values.tolist()
    data = base64.b64encode(values.tobytes()).decode("ascii")
    return {"dtype": kind, "bdata": data}
