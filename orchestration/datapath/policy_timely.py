"""TIMELY: Mittal et al., SIGCOMM 2015, sections 4.3 and 5.

A delta of 0 means a thousandth of the line rate, which is the paper's 10 Mbit/s at 10 Gbit/s. The
paper has no minimum rate; a min_rate of 0 means a hundredth of the line rate.
"""

from pathlib import Path

from orchestration.core.congestion import CongestionControl, Parameter

_MS = 1_000_000

TIMELY = CongestionControl(
    Path(__file__).with_suffix(".c"),
    {
        "delta": Parameter("rate", 0, 0, 4_000_000, "additive increase; 0 is line rate / 1000"),
        "beta": Parameter("number", 800, 1, 1_000, "multiplicative decrease"),
        "alpha": Parameter("number", 875, 1, 1_000, "weight of the new RTT difference"),
        "t_low": Parameter("time", 50_000, 0, 1_000 * _MS, "RTT below which rates rise"),
        "t_high": Parameter("time", 500_000, 1, 1_000 * _MS, "RTT above which rates fall"),
        "min_rtt": Parameter("time", 20_000, 1, 1_000 * _MS, "RTT that normalizes the gradient"),
        "hai_after": Parameter("count", 5, 1, 1_000, "rises until hyper-active increase"),
        "min_rate": Parameter("rate", 0, 0, 4_000_000, "minimum rate; 0 is line rate / 100"),
    },
    ascending=(("t_low", "t_high"),),
    compiled_in=True,
)
