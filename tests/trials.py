"""Trials of tests: what a test does not say is the same everywhere."""

from orchestration.core.trial import TrialSpec, TunerSpec


def trial_spec(**fields):
    """Return a trial of a static tuner on the fluid backend, with `fields` as they are given."""
    usual = {"campaign": "c", "backend": "fluid", "tuner": TunerSpec("secn1"), "seed": 1}
    return TrialSpec(**{**usual, "repeat": 1, **fields})
