"""Values over time in spans of equal length, for pictures of cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestration.core.records import Floats, Ints


@dataclass(frozen=True)
class Spans:
    """Spans of time: `edges_ns` (spans + 1,). Samples are inside of spans, not on their edges."""

    edges_ns: Floats

    @property
    def begins_ns(self) -> Ints:
        """When each begins, shape (spans,)."""
        return self.edges_ns[:-1].astype(np.int64)

    @property
    def span_ns(self) -> float:
        """The length of a span."""
        return float(self.edges_ns[1] - self.edges_ns[0])

    @property
    def middle_ms(self) -> Floats:
        """The middle of each, in ms, shape (spans,)."""
        return np.round((self.begins_ns + self.span_ns / 2) / 1e6, 4)

    def binned(
        self,
        t_ns: Ints,
        values: Floats,
        reduced: Callable[..., Floats] = np.nanmax,
    ) -> Floats:
        """Return one value for each span: (samples, rows) to (rows, spans), NaN without samples."""
        found = np.full((values.shape[1], len(self.edges_ns) - 1), math.nan)
        place = np.clip(
            np.searchsorted(self.edges_ns, t_ns, side="left") - 1, 0, len(self.edges_ns) - 2
        )
        for span in np.unique(place):
            part = values[place == span]
            known = ~np.isnan(part).all(axis=0)
            found[known, span] = reduced(part[:, known], axis=0)
        return found


def spans_of(times_ns: Sequence[Ints], most: int) -> Spans:
    """Return at most `most` spans for samples taken at each of `times_ns`, shapes (samples,)."""
    first, last = times_ns[0][0], min(float(t_ns[-1]) for t_ns in times_ns)
    samples = min(len(t_ns) for t_ns in times_ns)
    count, half_ns = min(most, samples), (last - first) / max(1, samples - 1) / 2
    return Spans(np.linspace(max(0.0, first - half_ns), last + half_ns + 1, count + 1))


def spans_between(times_ns: Sequence[Ints], most: int) -> Spans:
    """Return at most `most` spans that each end with a sample, the first of which begins one."""
    first, last = float(times_ns[0][0]), min(float(t_ns[-1]) for t_ns in times_ns)
    count = min(most, min(len(t_ns) for t_ns in times_ns) - 1)
    return Spans(np.linspace(first, last + 1, count + 1))
