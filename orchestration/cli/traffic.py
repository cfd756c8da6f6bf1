"""`closloop traffic`: lists and shows workloads, the distributions of flow sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from orchestration.cli.options import Group, Json
from orchestration.cli.terminal import print_json
from orchestration.render.table import Column, Row, Span, Table, table
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from traffic.workloads import Workload

app = Group("Show the flow-size distributions (workloads).")

# The papers' flow-size classes.
_CLASSES = ("(0,100KB]", "(100KB,10MB)", "[10MB,inf)")
_BAR_COLUMNS = 40


@app.command("list")
def list_workloads() -> None:
    """List the workloads: mean, median, p99, and the share of each class of flow sizes.

    A cell like "54% / 1.0%" is the share of all flows, then of all bytes.

    Example: closloop traffic list
    """
    from traffic.workloads import known_workloads, load_workload

    show(_overview([load_workload(name) for name in known_workloads()]))


@app.command("show")
def show_workload(
    workload: Annotated[str, "A workload's name, or the path of a CSV file of bytes,cdf."],
    as_json: Json = False,
) -> None:
    """Show one workload's cumulative distribution; a table of your own is checked first.

    Examples: closloop traffic show WebSearch

    closloop traffic show my-sizes.csv --json
    """
    from traffic.workloads import load_workload

    chosen = load_workload(workload)
    if as_json:
        print_json(_as_json(chosen), indent=2)
        return
    show(_overview([chosen]), "", _distribution(chosen), Span(chosen.source, "faint"))


def _overview(workloads: list[Workload]) -> Table:
    from orchestration.core.units import format_size

    rows = []
    for workload in workloads:
        sizes = (workload.mean_bytes, *workload.quantile([0.5, 0.99]))
        shares = [f"{_percent(flows)} / {_percent(size)}" for flows, size in _shares(workload)]
        rows.append([workload.name, *(format_size(size, 1) for size in sizes), *shares])
    caption = "size classes: share of flows / share of bytes"
    return table(("workload",), ("mean", "median", "p99", *_CLASSES), rows, caption=caption)


def _distribution(workload: Workload) -> Table:
    from orchestration.core.units import format_size

    rows = [
        [format_size(size, 3), f"{share:.2%}", "█" * round(share * _BAR_COLUMNS)]
        for size, share in workload.points
    ]
    columns = [Column("size up to", True), Column("share of flows", True), Column("")]
    caption = "between two points the size is linear in probability"
    return Table(columns, [Row(row) for row in rows], caption=caption)


def _shares(workload: Workload) -> list[tuple[float, float]]:
    """Return each size class's share of the flows and of the bytes, small flows first."""
    small = workload.share_up_to(100_000)
    below_large = workload.share_up_to(10_000_000, inclusive=False)
    bounds = ((0.0, 0.0), small, below_large, (1.0, 1.0))
    return [(high[0] - low[0], high[1] - low[1]) for low, high in pairwise(bounds)]


def _percent(share: float) -> str:
    digits = 1 if 0 < share < 0.0995 else 0
    return f"{share:.{digits}%}"


def _as_json(workload: Workload) -> dict[str, object]:
    median, p99 = workload.quantile([0.5, 0.99])
    return {
        "name": workload.name,
        "source": workload.source,
        "mean_bytes": round(workload.mean_bytes, 3),
        "median_bytes": float(median),
        "p99_bytes": float(p99),
        "classes": [
            {"sizes": label, "share_of_flows": flows, "share_of_bytes": size}
            for label, (flows, size) in zip(_CLASSES, _shares(workload), strict=True)
        ],
        "points": [{"bytes": size, "cdf": probability} for size, probability in workload.points],
    }
