"""RL-CC's networks for NICs: in floating point, in fixed point, and as C sources.

Must not import: tuners.training, orchestration.backends, orchestration.campaign.
"""

__all__ = ["fixed_point", "networks", "sources"]
