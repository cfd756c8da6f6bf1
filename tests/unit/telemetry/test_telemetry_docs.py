"""The page on telemetry names what is written, and nothing else."""

import re
from pathlib import Path

from collectors.sinks.lines import COMMON_TAGS, MEASUREMENTS
from orchestration.core.knobs import ECN
from orchestration.core.signals import recorded
from orchestration.telemetry.delivery import _FIRST_WAIT_S, _MAX_WAIT_S
from orchestration.telemetry.points import LINES

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "telemetry.md").read_text()


def test_the_table_has_every_measurement_with_its_tags_and_fields():
    rows = re.findall(r"^\| `(closloop_\w+)` \| (.*) \| (.*) \|$", TEXT, re.MULTILINE)
    shown = {name: (re.findall(r"`(\w+)`", a), re.findall(r"`(\w+)`", b)) for name, a, b in rows}
    assert shown == {name: (list(one.tags), list(one.fields)) for name, one in MEASUREMENTS.items()}
    for tag in COMMON_TAGS:
        assert f"`{tag}`" in TEXT


def test_figures_and_metrics_are_the_codes():
    words = " ".join(TEXT.split())
    assert f"sends {LINES:,} points a request" in words
    assert f"after {_FIRST_WAIT_S:g} s to {_MAX_WAIT_S:g} s" in words
    for signal in recorded("queue"):
        assert not signal.cumulative or f"`_{signal.name}_total`" in TEXT
    for column in ECN.columns:
        assert f"`_{column.name}`" in TEXT
