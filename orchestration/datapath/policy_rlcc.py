"""RL-CC, a learned congestion control: decision trees, and the networks that they come from.

Fuhrer et al., "Implementing RL Datacenter Congestion Control in NVIDIA NICs", HPSR 2023, sections
III and IV. The trees are distilled from a network (an MLP or an LSTM), so that a NIC can run them.
"""

from pathlib import Path

from orchestration.core.congestion import CongestionControl, Parameter


def _rlcc(source: str) -> CongestionControl:
    # in the order of enum rlcc_parameter in policy_rlcc.h
    parameters = {
        "target": Parameter("number", 64, 1, 1_000, "the target in the reward (equation 1)"),
        "beta": Parameter("number", 1_500, 0, 100_000, "beta in the reward (equation 1)"),
        "base_rtt": Parameter("time", 0, 0, 100_000_000, "base RTT; 0 is that of the testbed"),
        # DOCA PCC's template starts flows at line rate, its SDK at 1/256 of it
        "new_flow_rate": Parameter("number", 1_000, 1, 1_000, "first rate, share of line rate"),
    }
    return CongestionControl(
        Path(__file__).with_name(source),
        parameters,
        base_rtt="base_rtt",
        ack_every=1,
        times_round_trips=True,
        compiled_in=True,
    )


TREES = _rlcc("policy_rlcc.c")
MLP = _rlcc("policy_rlcc_mlp.c")
LSTM = _rlcc("policy_rlcc_lstm.c")
