"""Tuners of flowlet timeouts at switches, one file each: static, DRW, DRLet.

Must not import: tuners.training, orchestration.backends, orchestration.campaign.
"""

__all__ = ["drlet", "drlet_local", "learned", "settings"]
