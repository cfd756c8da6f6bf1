"""The patterns of a campaign file as those of its trials: paths resolved, windows closed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from orchestration.campaign import schema
from orchestration.campaign.fields import beside, file_beside, is_path, reference_beside
from orchestration.core.trial import PATTERNS, DriverSpec, PatternSpec
from traffic.workloads import load_workload

_OF_SENDING = ("driver", "congestion_control")


def pattern_spec(item: schema.AnyPattern, duration_ns: int, folder: str) -> PatternSpec:
    """Return a pattern of a trial; the campaign's paths start at `folder`."""
    name = reference_beside(folder, item.driver.name)
    driver = DriverSpec(name, tuple(item.driver.options.items()))
    return replace(
        flows_spec(item, duration_ns, folder),
        driver=driver,
        congestion_control=item.congestion_control or "",
    )


def flows_spec(item: schema.AnyPattern, duration_ns: int, folder: str) -> PatternSpec:
    """Return a pattern without what sends its flows, and without a congestion control.

    A file's fields have a trial's names without their units: `size` is `size_bytes`. What it leaves
    open is the trial's end for `stop`, and 0 for others.
    """
    kind = PATTERNS[item.kind]
    values: dict[str, Any] = {}
    for field in fields(kind):
        name = field.name.removesuffix("_ns").removesuffix("_bytes")
        if field.name not in _OF_SENDING:
            value = getattr(item, name)
            values[field.name] = (duration_ns if name == "stop" else 0) if value is None else value
    if isinstance(item, schema.Poisson):
        workload = beside(folder, item.workload)
        # one id for `websearch` and `WebSearch`
        values["workload"] = workload if is_path(workload) else load_workload(workload).name
    elif isinstance(item, schema.Replay):
        values["file"] = file_beside(folder, item.file)
    return kind(**values)
