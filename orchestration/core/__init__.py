"""The words as code, which all packages share: testbed, trial, signals, knobs, records, problems.

`topology` and `parts` are the testbed, `trial` one cell at one seed, `signals` and `knobs` what is
measured and set, `records` what a trial leaves, `ports` the protocols between packages,
`capabilities` what a backend can do, `problems` and `errors` what can go wrong.
Must not import: any other package of ours, pydantic, pyarrow, typer, rich.
"""

__all__ = [
    "builds",
    "capabilities",
    "codec",
    "condition",
    "congestion",
    "csv_columns",
    "engines",
    "errors",
    "files",
    "knobs",
    "load_balancing",
    "machine",
    "marking_probability",
    "outputs",
    "parts",
    "pattern",
    "plugins",
    "ports",
    "problems",
    "provenance",
    "records",
    "repeats",
    "roce",
    "signals",
    "status",
    "topology",
    "trial",
    "units",
    "verb",
]
