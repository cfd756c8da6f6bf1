"""Publishes runs, live and finished: to InfluxDB, and as Prometheus metrics.

Must not import: orchestration.bench, orchestration.papers, orchestration.search.
"""

from orchestration.core.verb import RESULTS, Verb

__all__ = ["VERBS", "process", "settings"]

VERBS = (
    Verb(
        "push",
        "Send archived runs to InfluxDB. Given again, it continues; nothing is stored twice.",
        "orchestration.telemetry.verbs:push",
        RESULTS,
    ),
    Verb(
        "pull",
        "Rebuild a campaign's run folder from InfluxDB, table by table, and check that "
        "it is complete.",
        "orchestration.telemetry.verbs:pull",
        RESULTS,
    ),
    Verb(
        "exporter",
        "Serve a run's metrics in Prometheus' text format: its trials, and the queues "
        "of running ones.",
        "orchestration.telemetry.verbs:exporter",
        RESULTS,
    ),
)
