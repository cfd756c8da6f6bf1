"""Trials of tests: what a test does not say is the same everywhere."""

from types import SimpleNamespace

import numpy as np

from inventory.routing import ideal_times_ns
from orchestration.core.records import Samples, Schedule
from orchestration.core.trial import TrialSpec, TunerSpec
from traffic.schedule import class_names
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


def result_in_memory(spec, testbed, flows, **tables):
    """Return a finished trial of which no file exists.

    `flows` has a row for each flow: start, end (-1: not finished), source, destination, bytes,
    pattern. Flows of a long-lived pattern have the end None. A further table is given as columns.
    """
    start_ns, end_ns, src, dst, size_bytes, klass = zip(*flows, strict=True)
    status = ["lasting" if end is None else "done" if end >= 0 else "unfinished" for end in end_ns]
    ends = np.array([-1 if end is None else end for end in end_ns])
    names = class_names(spec.traffic)
    schedule = Schedule(
        start_ns=np.array(start_ns),
        src=np.array([testbed.hosts.index(name) for name in src]),
        dst=np.array([testbed.hosts.index(name) for name in dst]),
        size_bytes=np.array(size_bytes),
        klass=np.array([names.index(name) for name in klass]),
        classes=names,
    )
    words = {name: np.array(row, dtype=object) for name, row in
             (("src", src), ("dst", dst), ("class", klass), ("status", status))}  # fmt: skip
    number = np.arange(len(flows))
    known = {
        **tables,
        "schedule": {**words, "flow_id": number, "start_ns": schedule.start_ns,
                     "bytes": schedule.size_bytes},
        "flows": {"flow_id": number, "start_ns": schedule.start_ns, "end_ns": ends,
                  "fct_ns": ends - schedule.start_ns, "retransmits": number * 0,
                  "ideal_ns": ideal_times_ns(testbed, schedule, spec), "status": words["status"]},
    }  # fmt: skip
    known.setdefault("flow_samples", {"t_ns": np.zeros(0)})
    return SimpleNamespace(
        spec=spec, testbed=testbed, facts={}, table=known.__getitem__, ports=no_samples(testbed)
    )


def no_samples(testbed):
    """Return the samples of queues of a trial that was over before there was one."""
    return Samples.of("queue", np.zeros(0, dtype=int), *[np.zeros((0, len(testbed.queues)))] * 5)
