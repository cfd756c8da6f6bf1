"""A stand-in for BlueField-3's DOCA PCC programs on a virtual rack's hosts.

Must not import: orchestration.bench, orchestration.papers.
"""

__all__ = ["files"]
