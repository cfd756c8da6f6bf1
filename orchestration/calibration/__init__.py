"""Measures what a backend's fabric really does, and corrects a testbed file by it."""

from orchestration.core.verb import STUDIES, Verb

VERBS = (
    Verb(
        "calibrate",
        "Measure a backend's base RTT, goodput ceiling, marking curve and control-loop delay.",
        "orchestration.calibration.verbs:calibrate",
        STUDIES,
    ),
)
