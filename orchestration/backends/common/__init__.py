"""What several backends share: rigs, faults, Linux settings, time that is dilated or real.

Must not import: orchestration.backends.emulated, orchestration.backends.fluid,
orchestration.backends.hardware, orchestration.backends.simulated.
"""

__all__ = ["dilation", "faults", "linux", "machine_monitor", "rig"]
