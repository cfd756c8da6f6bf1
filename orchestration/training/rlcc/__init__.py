"""Training of RL-CC: rollouts in ns-3, the policy in its NICs, and the gradient of equation 3.

Fuhrer et al., "Implementing RL Datacenter Congestion Control in NVIDIA NICs", HPSR 2023.
Must not import: orchestration.papers, orchestration.search.
"""

__all__ = ["distill", "rollout", "scenarios", "train"]
