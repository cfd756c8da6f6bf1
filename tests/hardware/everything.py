"""A tuner for a campaign in real time that observes and turns all that its backend offers."""

import numpy as np

from orchestration.core.capabilities import capabilities
from orchestration.core.knobs import KNOBS
from orchestration.core.records import MISSING, Setup
from orchestration.core.signals import targets
from tuners.base import BaseTuner


def real_mode(backend):
    (mode,) = (mode for mode in capabilities(backend).modes if mode.real_time)
    return mode


class _Everything(BaseTuner):
    backend = ""

    def __init__(self):
        mode = real_mode(self.backend)
        self.observes, self.knobs = mode.signals, mode.knobs
        self.measured, self.set = set(), set()

    def reset(self, testbed, seed):
        self.testbed = testbed
        return Setup()

    def act(self, observation):
        self.measured |= {
            key
            for key in self.observes
            if (values := observation.get(key)) is not None and (values != MISSING).any()
        }
        self.set |= {
            f"{name} {column}"
            for name, columns in observation.settings.items()
            for column, values in columns.items()
            if column in ("kmin_bytes", "timeout_ns") and set(values) == {70_000}
        }
        return tuple(map(self.change, self.knobs))

    def change(self, name):
        knob = KNOBS[name]
        columns = (70_000, 90_000, 0.5) if name == "ecn" else (70_000,)
        return knob.change(np.arange(len(targets(self.testbed, knob.scope))), *columns)

    def facts(self):
        return {"measured": sorted(self.measured), "set": sorted(self.set)}


class OnRack(_Everything):
    backend = "hardware"


class OnKernel(_Everything):
    backend = "emulated"


def check(trial, backend, settings):
    """Check a trial under this tuner: all was measured, set, kept, and on the real clock."""
    mode = real_mode(backend)
    assert set(trial.facts["tuner"]["measured"]) == set(mode.signals)
    assert trial.facts["tuner"]["set"] == settings
    assert trial.facts["clock"] == "real"
    assert "signal-unmeasured" not in [reason.code for reason in trial.stamp.reasons]
    kept = {key.partition(".")[2] for key in (*mode.signals, *mode.recorded) if "host." in key}
    for name in kept:
        assert (trial.samples("host")[name] != MISSING).all(), name
