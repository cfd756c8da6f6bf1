"""No congestion control: each flow has a fixed rate."""

from pathlib import Path

from orchestration.core.congestion import CongestionControl, Parameter

FIXED = CongestionControl(
    Path(__file__).with_suffix(".c"),
    {"rate": Parameter("rate", 0, 0, 4_000_000, "rate of each flow; 0 is line rate")},
    compiled_in=True,
)
