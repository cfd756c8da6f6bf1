"""A deterministic fluid model of the fabric, without packets: for tests and quick estimates.

Must not import: orchestration.backends.emulated, orchestration.backends.hardware,
orchestration.backends.simulated, pyroute2.
"""

__all__ = ["backend"]
