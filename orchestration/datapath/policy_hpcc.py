"""HPCC: Li et al., SIGCOMM 2019, section 5.1."""

from pathlib import Path

from orchestration.core.congestion import CongestionControl, Parameter

HPCC = CongestionControl(
    Path(__file__).with_suffix(".c"),
    {
        "eta": Parameter("number", 950, 1, 1_000, "target utilization"),
        "max_stage": Parameter("count", 5, 0, 1_000, "additive increases in a row"),
        "w_ai": Parameter("size", 80, 1, 10_000_000, "additive increase of the window"),
        "t": Parameter("time", 0, 0, 16_000_000, "base RTT; 0 is that of the testbed"),
    },
    base_rtt="t",
    ack_every=1,
    compiled_in=True,
)
