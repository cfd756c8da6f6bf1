"""Trials on the nodes of a Ray cluster. Ray is imported only when a cluster is used.

Must not import: orchestration.bench, orchestration.papers, orchestration.search.
"""

__all__: list[str] = []
