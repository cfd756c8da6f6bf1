"""The table of verbs: name, help text and module. A verb's module is loaded when it is called.

Importing all verbs and reading their options took a third of the time of `closloop --help`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Verb:
    """A verb: its name, the first paragraph of its help, and the place of its function or app.

    `place` is `module:name` in this package; both default to the verb's name.
    """

    name: str
    help: str
    place: str = ""


VERBS = (
    Verb("init", "Write a first campaign, with comments, for answers to three questions."),
    Verb("run", "Run a campaign. Given again after Ctrl-C or a crash, it goes on where it was."),
    Verb("plan", "Show what a campaign would run, in which order, and how long it would take."),
    Verb(
        "search",
        "Search for the best static setting of a campaign, and of each of its conditions.",
    ),
    Verb(
        "headroom",
        "Show what any tuner could win: the loss of the best static setting, by condition.",
    ),
    Verb(
        "replay", "Replay a run: the same flows at the same times, with the same or another tuner."
    ),
    Verb(
        "whatif",
        "Replay a trial to the bit with one decision changed: what did it do to every flow?",
    ),
    Verb("credit", "Does a tuner's reward rank its decisions as flows' completion does?"),
    Verb(
        "watch",
        "Watch a run: trials, queues and links of the fabric, marks, the tuner's actions, "
        "warnings.",
    ),
    Verb(
        "push",
        "Send archived runs to InfluxDB. Given again, it goes on where it was; nothing comes "
        "twice.",
        "telemetry",
    ),
    Verb(
        "pull",
        "Rebuild a campaign's run folder from InfluxDB, table by table, and check that it is "
        "whole.",
        "telemetry",
    ),
    Verb(
        "exporter",
        "Serve a run's metrics in Prometheus' text format: its trials, and the queues of "
        "running ones.",
        "telemetry",
    ),
    Verb(
        "report", "Report a campaign: FCT slowdown by flow size, paired differences, queues, marks."
    ),
    Verb("sql", "Ask run folders in SQL (DuckDB's): what no report answers."),
    Verb(
        "compare",
        "Compare runs: is each metric equivalent, different, or is there not enough data?",
    ),
    Verb(
        "check-tuner",
        "Check a tuner against the contract of all tuners, on made-up readings.",
        "check_tuner:check_tuner",
    ),
    Verb(
        "signals", "List the signals and knobs that are declared, and the backends that offer them."
    ),
    Verb("train", "Train a tuner. Given again after Ctrl-C or a crash, it goes on where it was."),
    Verb("distill", "Distil RL-CC's network into boosted trees, which a NIC computes."),
    Verb("compile", "Make a congestion control of a CatBoost model: C, BPF, a library, DOCA PCC."),
    Verb(
        "deploy",
        "Put a congestion control in force, for campaigns or on a rack's hosts; reversible.",
    ),
    Verb(
        "calibrate",
        "Measure a backend's base RTT, goodput ceiling, marking curve and control-loop delay.",
    ),
    Verb(
        "fidelity",
        "Run the scenarios on both backends, what is not finished, and write the page.",
        "studies",
    ),
    Verb(
        "provision",
        "Bring a rack's devices into the state that experiments need; it can be undone.",
    ),
    Verb(
        "restore",
        "Put a rack back as it was found: what dead runs left, deployed policies, provisioning.",
    ),
    Verb("clean", "Remove what a killed rack left on this machine, and give lent interfaces back."),
    Verb("doctor", "Say what this machine can do, and what to do about what is missing."),
    Verb("inventory", "Testbeds, and inventories of racks.", "inventory:app"),
    Verb("traffic", "Show the flow-size distributions (workloads).", "traffic:app"),
    Verb(
        "rack",
        "Start and use a virtual rack: devices in virtual time, reachable only by SSH.",
        "rack:app",
    ),
    Verb(
        "import",
        "Take over others' results as run folders, flows out of captures and flow records, or a "
        "containerlab lab as a testbed.",
        "exchange:importer",
    ),
    Verb(
        "export",
        "Write a run's or campaign's flows in others' formats, or a testbed as a containerlab lab.",
        "exchange:exporter",
    ),
    Verb("kernel", "Build, pack, show and check the virtual-time kernel.", "kernel:app"),
    Verb("bench", "Measure what the project claims.", "studies"),
    Verb("papers", "Run the papers' campaigns and compare.", "studies"),
)


class Verbs(TyperGroup):
    """The group of all verbs: shows the table `VERBS`, and loads the verb that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the called verb's name, the verb with its options, and the remaining arguments."""
        name, shown, rest = super().resolve_command(ctx, args)
        return name, shown if name is None else load(name), rest


def load(name: str) -> Any:
    """Import a verb, and return its typer command."""
    (verb,) = (verb for verb in VERBS if verb.name == name)
    place, _, attribute = verb.place.partition(":")
    module = importlib.import_module(f"orchestration.cli.{place or name}")
    found = getattr(module, attribute or name)
    alone = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
        group: Any = typer.main.get_command(alone)
        return group.commands[name]
    alone.command(name, epilog=getattr(found, "epilog", None))(found)
    return typer.main.get_command(alone)


def shown_only() -> None:
    """Stand for a verb in the help."""
