"""Tuners of ECN marking thresholds, one file each: static, rule-based (AMT, QAECN), learned.

Must not import: tuners.training, orchestration.backends, orchestration.campaign.
"""

__all__ = ["acc", "features", "graphcc", "learned", "pet", "static", "templates"]
