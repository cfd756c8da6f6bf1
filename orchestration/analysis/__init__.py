"""Finished trials become numbers and statements: metrics, statistics, reports, comparisons.

`metrics` is the catalogue of metrics, `summary` reduces a campaign's trials, `statistics`,
`quantiles` and `sequential` give intervals, `stamp` judges whether a trial can be trusted;
`report` and `comparison` make pages.
Must not import: orchestration.run, orchestration.backends, orchestration.cli.
"""

__all__ = [
    "arms",
    "comparison",
    "flow_metrics",
    "index",
    "learning_curve",
    "load",
    "metric_types",
    "metrics",
    "port_metrics",
    "quantiles",
    "report",
    "sequential",
    "stamp",
    "statistics",
    "student_t",
    "summary",
    "trial_metrics",
]
