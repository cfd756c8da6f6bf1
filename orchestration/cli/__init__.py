"""The command line: one thin module a verb, which parses, calls one function, returns a code.

Other packages use `options` (types of options that several verbs have), `terminal` and `display`.
Must not import: orchestration.bench, orchestration.papers, orchestration.search, closloop.
"""

from orchestration.core.verb import EXPERIMENTS, RACKS, RESULTS, TUNERS, Verb

__all__ = ["VERBS", "compile", "display", "options", "plan", "run", "terminal", "verbs"]

VERBS = (
    Verb(
        "init",
        "Write a first campaign, with comments, from answers to three questions.",
        "orchestration.cli.init:init",
        EXPERIMENTS,
    ),
    Verb(
        "plan",
        "Show what a campaign would run, in which order, and how long it would take.",
        "orchestration.cli.plan:plan",
        EXPERIMENTS,
    ),
    Verb(
        "run",
        "Run a campaign. After Ctrl-C or a crash, the same command continues it.",
        "orchestration.cli.run:run",
        EXPERIMENTS,
    ),
    Verb(
        "report",
        "Report a campaign: FCT slowdown by flow size, paired differences, queues, marks.",
        "orchestration.cli.report:report",
        RESULTS,
    ),
    Verb(
        "sql",
        "Query run folders in SQL (of DuckDB), for questions that no report answers.",
        "orchestration.cli.sql:sql",
        RESULTS,
    ),
    Verb(
        "compare",
        "Compare runs: is each metric equivalent, different, or is there not enough data?",
        "orchestration.cli.compare:compare",
        RESULTS,
    ),
    Verb(
        "check-tuner",
        "Check a tuner against the contract of all tuners, on made-up readings.",
        "orchestration.cli.check_tuner:check_tuner",
        TUNERS,
    ),
    Verb(
        "signals",
        "List the signals and knobs that are declared, and the backends that offer them.",
        "orchestration.cli.signals:signals",
        TUNERS,
    ),
    Verb(
        "compile",
        "Make a congestion control from a CatBoost model: C, BPF, a library or DOCA PCC.",
        "orchestration.cli.compile:compile",
        TUNERS,
    ),
    Verb(
        "doctor",
        "Check what this machine can do, and say how to get what is missing.",
        "orchestration.cli.doctor:doctor",
        RACKS,
    ),
    Verb(
        "inventory",
        "Testbeds, and inventories of racks.",
        "orchestration.cli.inventory:app",
        RACKS,
    ),
    Verb(
        "traffic",
        "Show the flow-size distributions (workloads).",
        "orchestration.cli.traffic:app",
        EXPERIMENTS,
    ),
    Verb(
        "kernel",
        "Build, pack, show and check the virtual-time kernel.",
        "orchestration.cli.kernel:app",
        RACKS,
    ),
)
