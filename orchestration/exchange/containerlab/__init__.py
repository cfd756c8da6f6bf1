"""A testbed as a containerlab topology, and a topology as a testbed.

Must not import: orchestration.run, orchestration.backends.
"""

__all__: list[str] = []
