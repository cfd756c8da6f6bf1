"""What is sent: patterns of traffic, flow sizes, and a trial's schedule of flows.

`patterns` has one file a kind, `workloads` the flow-size distributions, `schedule` makes every flow
of a trial before it starts, `delivery` predicts how much of it can arrive, `drivers` send it.
Must not import: collectors, tuners, orchestration.backends, orchestration.campaign.
"""

__all__ = ["arrivals", "delivery", "drivers", "patterns", "schedule", "workloads"]
