"""Measures what a backend's fabric really does, and corrects a testbed file by it.

Must not import: orchestration.bench, orchestration.papers.
"""

from orchestration.core.verb import STUDIES, Verb

__all__ = ["VERBS"]

VERBS = (
    Verb(
        "calibrate",
        "Measure a backend's base RTT, goodput ceiling, marking curve and control-loop delay.",
        "orchestration.calibration.verbs:calibrate",
        STUDIES,
    ),
)
