"""The kinds of traffic patterns, one file each: their fields, their checks, and their flows.

Each is offered in the entry-point group `closloop.patterns`, as a user's own is (see
`orchestration.core.pattern`). Times, hosts and sizes are drawn from separate streams, each read in
sequence, so that a wider or longer incast adds flows and changes none of the others.
Must not import: tuners, traffic.drivers, orchestration.backends, orchestration.campaign.
"""

__all__ = ["alternating", "incast", "poisson", "replay", "single_flow"]
