"""A metric: for which share of a trial the fabric had no flow."""

import numpy as np

from closloop import Metric


def idle(trial) -> float:
    """Return the share of the time until the last flow ended in which no flow was in progress."""
    flows = trial.table("flows")
    done = flows["fct_ns"] > 0
    ends = flows["end_ns"][done]
    starts = ends - flows["fct_ns"][done]
    order = np.argsort(starts)
    latest = np.maximum.accumulate(ends[order])
    gaps = np.maximum(0, starts[order][1:] - latest[:-1])
    return float((starts.min() + gaps.sum()) / ends.max())


IDLE = Metric("idle_share", "time without a flow", "share", "trial", "share", of=idle)
