"""Trials of tests: what a test does not say is the same everywhere."""

from orchestration.core.trial import TrialSpec, TunerSpec
from tuners.ecn.static import Secn1


def trial_spec(**fields):
    """Return a trial of a static tuner on the fluid backend, with `fields` as they are given."""
    usual = {"campaign": "c", "backend": "fluid", "tuner": TunerSpec("secn1"), "seed": 1}
    return TrialSpec(**{**usual, "repeat": 1, **fields})


def incast_campaign(name="tiny", tuners="secn1, secn2", repeats=2, more="drain: 20ms\n"):
    """Return the file of a campaign of short incasts on the fluid backend."""
    return (
        f"campaign: {name}\ntestbed: rlcc-7\nbackend: fluid\ntuners: [{tuners}]\n"
        "traffic:\n  - {kind: incast, fan_in: 4, size: 64KB, period: 500us}\n"
        f"repeats: {repeats}\nduration: 1ms\n{more}"
    )


class Watching(Secn1):
    """A static tuner that keeps what it is shown of `observes`."""

    def __init__(self, *observes):
        super().__init__()
        self.observes, self.seen = observes or Secn1.observes, []

    def act(self, observation):
        self.seen.append(observation)
        return ()
