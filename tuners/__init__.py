"""What decides: on marking thresholds, flowlet timeouts, or a NIC's rate.

One file a tuner, in `ecn`, `flowlet` and `nic`; `training` has one file a learner, `learning` what
those that learn share. `registry.create` makes a tuner by its name, `contract` checks one.
Must not import: collectors.sinks, orchestration.backends, orchestration.campaign,
orchestration.run.
"""

__all__ = ["base", "contract", "ecn", "flowlet", "learning", "nic", "recorded", "registry"]
