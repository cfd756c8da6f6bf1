"""Swift: Kumar et al., SIGCOMM 2020, algorithm 1 and section 3.5.

The paper has no values for most parameters. The defaults are those of csg-htsim (sim/swift.cpp),
also that of init_cwnd, the first window.
"""

from pathlib import Path

from orchestration.core.congestion import CongestionControl, Parameter

_MS = 1_000_000

SWIFT = CongestionControl(
    Path(__file__).with_suffix(".c"),
    {
        "ai": Parameter("number", 1_000, 1, 1_000_000, "additive increase, packets a round trip"),
        "beta": Parameter("number", 800, 1, 1_000, "multiplicative decrease"),
        "max_mdf": Parameter("number", 500, 1, 999, "largest decrease of a window"),
        "base_target": Parameter("time", 20_000, 1, 100 * _MS, "target delay without hops"),
        "hop_scale": Parameter("time", 3_053, 0, 10 * _MS, "target delay added by a hop"),
        "fs_range": Parameter("time", 100_000, 0, 100 * _MS, "maximum that flow scaling adds"),
        "fs_min_cwnd": Parameter("number", 100, 1, 4_000_000, "window of maximum flow scaling"),
        "fs_max_cwnd": Parameter("number", 100_000, 1, 4_000_000, "window of no flow scaling"),
        "min_cwnd": Parameter("number", 10, 1, 1_000, "smallest window, packets"),
        "max_cwnd": Parameter("number", 1_000_000, 1_000, 4_000_000, "largest window, packets"),
        "init_cwnd": Parameter("number", 12_000, 1, 4_000_000, "first window, packets"),
        "retx_reset_threshold": Parameter(
            "count", 5, 1, 1_000, "timeouts until the smallest window"
        ),
    },
    ack_every=1,
    ascending=(("fs_min_cwnd", "fs_max_cwnd"), ("min_cwnd", "max_cwnd")),
    compiled_in=True,
)
