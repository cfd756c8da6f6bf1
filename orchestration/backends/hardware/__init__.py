"""A rack of switches and hosts, reached over SSH. So far it has run on virtual racks only.

`backend` runs trials, `survey` asks devices what they are; `safety` bounds and undoes changes.
Must not import: orchestration.backends.emulated, orchestration.backends.fluid,
orchestration.backends.simulated, orchestration.virtual_rack.
"""

__all__ = ["backend", "safety", "sonic", "survey"]
