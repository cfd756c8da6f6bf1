"""closloop's public API: what a program, a tuner or a pattern of one's own may rely on.

    import closloop

    closloop.run("campaign.yml", on="fluid")
    for condition in closloop.summarise("runs/campaign", compare="load_balancing").conditions:
        print(condition.label, *(item.verdict for item in condition.comparisons if item.judged))
    flows = closloop.table("runs", "flows").df()
    closloop.compare("runs/a", "runs/b")[0].verdict

Everything else in the packages beside this one may change at any time; these names change with
`API_VERSION` only: its first number when something goes or means something else, its second when
something joins. Nothing heavy is loaded before it is used.
Must not import: typer, rich, torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closloop.campaigns import compare, plan, run, summarise
    from inventory.rack import SwitchSystem
    from orchestration.analysis.metric_types import Metric
    from orchestration.core.congestion import CongestionControl, Parameter
    from orchestration.core.errors import ClosloopError
    from orchestration.core.knobs import ECN, KNOBS, Column, Knob
    from orchestration.core.pattern import Expected, Flows, PatternSpec, Streams, given
    from orchestration.core.ports import Offer, Tuner
    from orchestration.core.records import Action, Change, Observation, Program, Setup
    from orchestration.core.signals import FLOW_TABLE, SIGNALS, Signal
    from orchestration.environment import FabricEnv, FabricParallelEnv
    from orchestration.environment import Settings as EnvironmentSettings
    from orchestration.results.sql import sql, table
    from tuners.base import BaseTuner
    from tuners.contract import check_tuner
    from tuners.learning.checkpoint import load as load_checkpoint
    from tuners.learning.learner import Learner

API_VERSION = "2.1"

_MODULES = {
    "closloop.campaigns": ("compare", "plan", "run", "summarise"),
    "inventory.rack": ("SwitchSystem",),
    "orchestration.analysis.metric_types": ("Metric",),
    "orchestration.core.congestion": ("CongestionControl", "Parameter"),
    "orchestration.core.errors": ("ClosloopError",),
    "orchestration.core.knobs": ("ECN", "KNOBS", "Column", "Knob"),
    "orchestration.core.pattern": ("Expected", "Flows", "PatternSpec", "Streams", "given"),
    "orchestration.core.ports": ("Offer", "Tuner"),
    "orchestration.core.records": ("Action", "Change", "Observation", "Program", "Setup"),
    "orchestration.core.signals": ("FLOW_TABLE", "SIGNALS", "Signal"),
    "orchestration.environment": ("FabricEnv", "FabricParallelEnv"),
    "orchestration.results.sql": ("sql", "table"),
    "tuners.base": ("BaseTuner",),
    "tuners.contract": ("check_tuner",),
    "tuners.learning.learner": ("Learner",),
}
# For each public name: the module that has it, and its name there.
_LOCATIONS = {name: (module, name) for module, names in _MODULES.items() for name in names}
_LOCATIONS["EnvironmentSettings"] = ("orchestration.environment", "Settings")
_LOCATIONS["load_checkpoint"] = ("tuners.learning.checkpoint", "load")

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
    "Expected",
    "FabricEnv",
    "FabricParallelEnv",
    "Flows",
    "Knob",
    "Learner",
    "Metric",
    "Observation",
    "Offer",
    "Parameter",
    "PatternSpec",
    "Program",
    "Setup",
    "Signal",
    "Streams",
    "SwitchSystem",
    "Tuner",
    "check_tuner",
    "compare",
    "given",
    "load_checkpoint",
    "plan",
    "run",
    "sql",
    "summarise",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in _LOCATIONS:
        raise AttributeError(f"module 'closloop' has no attribute {name!r}")
    module, name_there = _LOCATIONS[name]
    value = getattr(import_module(module), name_there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
