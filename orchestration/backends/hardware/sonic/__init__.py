"""SONiC switches: the configuration that they accept, and what their counters mean.

Must not import: orchestration.run, orchestration.cli, orchestration.virtual_rack.
"""

__all__ = ["config"]
