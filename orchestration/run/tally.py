"""The progress of a run: counts of its trials, and the time left."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestration.render.numbers import clock_text


@dataclass
class RunningTrial:
    """A running trial: its start (in seconds of the tally's clock), and its last progress."""

    began_s: float
    virtual_ns: int = 0
    end_ns: int = 0
    wall_s: float = 0.0


@dataclass
class Tally:
    """Counts of a run's trials, and the running trials by id."""

    trials: int = 0
    earlier: int = 0
    jobs: int = 1
    finished: int = 0
    invalid: int = 0
    failed: int = 0
    spent_s: float = 0.0
    running: dict[str, RunningTrial] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of trials with results, including those of earlier runs."""
        return self.earlier + self.finished

    def left_s(self, now_s: float) -> float | None:
        """Return the estimated wall time left in s, or None while nothing is known.

        A trial counts with the mean time of ended trials, or at first by the progress of running
        ones.
        """
        ended = self.finished + self.failed
        if ended:
            mean_s = self.spent_s / ended
        else:
            told = [
                trial.wall_s * max(1.0, trial.end_ns / trial.virtual_ns)
                for trial in self.running.values()
                if trial.virtual_ns
            ]
            if not told:
                return None
            mean_s = sum(told) / len(told)
        waiting = self.trials - self.done - self.failed - len(self.running)
        started = sum(max(0.0, mean_s - now_s + t.began_s) for t in self.running.values())
        return (waiting * mean_s + started) / self.jobs


def status_line(tally: Tally, now_s: float) -> str:
    """Return `3 of 10 done, 2 running, 1 failed, 40.0 s of wall time left`."""
    parts = [f"{tally.done} of {tally.trials} done", f"{len(tally.running)} running"]
    if tally.failed:
        parts.append(f"{tally.failed} failed")
    if tally.invalid:
        parts.append(f"{tally.invalid} invalid")
    left_s = tally.left_s(now_s)
    if left_s is not None:
        parts.append(f"{clock_text(left_s)} of wall time left")
    return ", ".join(parts)
