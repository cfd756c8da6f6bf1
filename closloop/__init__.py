"""closloop's public API: what a program or a tuner of one's own may rely on.

    import closloop

    summary = closloop.run("campaign.yml", on="fluid")
    flows = closloop.table("runs", "flows").df()
    closloop.compare("runs/a", "runs/b")[0].verdict

Everything else in the packages beside this one may change at any time; these names change with
`API_VERSION` only: its first number when something goes or means something else, its second when
something joins. Nothing heavy is loaded before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closloop.campaigns import compare, plan, run
    from inventory.rack import SwitchSystem
    from orchestration.analysis.metric import Metric
    from orchestration.core.congestion import CongestionControl, Parameter
    from orchestration.core.errors import ClosloopError
    from orchestration.core.knobs import ECN, KNOBS, Column, Knob
    from orchestration.core.ports import Offer, Tuner
    from orchestration.core.records import Action, Change, Observation, Program, Setup
    from orchestration.core.signals import FLOW_TABLE, SIGNALS, Signal
    from orchestration.environment import FabricEnv, FabricParallelEnv
    from orchestration.environment import Settings as EnvironmentSettings
    from orchestration.results.sql import sql, table
    from tuners.base import BaseTuner
    from tuners.contract import check_tuner

API_VERSION = "1.2"

# name -> where it is, and what it is called there
_PLACES = {
    "Action": ("orchestration.core.records", "Action"),
    "BaseTuner": ("tuners.base", "BaseTuner"),
    "Change": ("orchestration.core.records", "Change"),
    "ClosloopError": ("orchestration.core.errors", "ClosloopError"),
    "Column": ("orchestration.core.knobs", "Column"),
    "ECN": ("orchestration.core.knobs", "ECN"),
    "CongestionControl": ("orchestration.core.congestion", "CongestionControl"),
    "EnvironmentSettings": ("orchestration.environment", "Settings"),
    "FLOW_TABLE": ("orchestration.core.signals", "FLOW_TABLE"),
    "FabricEnv": ("orchestration.environment", "FabricEnv"),
    "FabricParallelEnv": ("orchestration.environment", "FabricParallelEnv"),
    "KNOBS": ("orchestration.core.knobs", "KNOBS"),
    "Knob": ("orchestration.core.knobs", "Knob"),
    "Metric": ("orchestration.analysis.metric", "Metric"),
    "Observation": ("orchestration.core.records", "Observation"),
    "Offer": ("orchestration.core.ports", "Offer"),
    "Parameter": ("orchestration.core.congestion", "Parameter"),
    "Program": ("orchestration.core.records", "Program"),
    "SIGNALS": ("orchestration.core.signals", "SIGNALS"),
    "Setup": ("orchestration.core.records", "Setup"),
    "Signal": ("orchestration.core.signals", "Signal"),
    "SwitchSystem": ("inventory.rack", "SwitchSystem"),
    "Tuner": ("orchestration.core.ports", "Tuner"),
    "check_tuner": ("tuners.contract", "check_tuner"),
    "compare": ("closloop.campaigns", "compare"),
    "plan": ("closloop.campaigns", "plan"),
    "run": ("closloop.campaigns", "run"),
    "sql": ("orchestration.results.sql", "sql"),
    "table": ("orchestration.results.sql", "table"),
}

__all__ = [
    "API_VERSION",
    "ECN",
    "FLOW_TABLE",
    "KNOBS",
    "SIGNALS",
    "Action",
    "BaseTuner",
    "Change",
    "ClosloopError",
    "Column",
    "CongestionControl",
    "EnvironmentSettings",
    "FabricEnv",
    "FabricParallelEnv",
    "Knob",
    "Metric",
    "Observation",
    "Offer",
    "Parameter",
    "Program",
    "Setup",
    "Signal",
    "SwitchSystem",
    "Tuner",
    "check_tuner",
    "compare",
    "plan",
    "run",
    "sql",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'closloop' has no attribute {name!r}")
    module, there = _PLACES[name]
    value = getattr(import_module(module), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
