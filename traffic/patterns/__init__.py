"""The kinds of traffic patterns, one file each: fields, what a campaign is told of them, and flows.

Each is offered in the entry-point group `closloop.patterns`, as a user's own is; see
`orchestration.core.pattern`. Times, places and sizes come from separate streams that are read
sequentially. So a wider incast or a longer one adds flows without changing the others. So it is
with loads of `draw: independent`: a higher load compresses the same sequence of flows in time, a
longer window adds flows. With `strata`, sizes depend on how many flows there are
(`traffic.arrivals`).
"""
