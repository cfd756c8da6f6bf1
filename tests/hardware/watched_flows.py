"""A campaign of two flows, and a tuner that writes what it sees of flows."""

import json

FLOWS = """
campaign: flows
testbed: {folder}/four.yml
backend: {where}
host: {{congestion_control: {control}}}
tuners: [watcher.py:Watcher]
traffic:
  - {{kind: flow, src: h1, dst: h2, size: 1500KB, start: 0ms}}
  - {{kind: flow, src: h1, dst: h2, size: 100KB, start: 0ms}}
repeats: 1
duration: 3s
drain: 1s
sample_period: 20ms
"""
# Writes what it saw of flows beside itself.
WATCHER = """
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from closloop import KNOBS, BaseTuner, Setup

NAMES = ("incast_degree", "mice_flows", "elephant_flows")


@dataclass
class Watcher(BaseTuner):
    observes = NAMES
    knobs = ("ecn",)

    def reset(self, testbed, seed):
        return Setup((KNOBS["ecn"].change(np.arange(len(testbed.queues)), 30_000, 90_000, 0.1),))

    def act(self, observation):
        row = {name: observation.values[name].tolist() for name in NAMES}
        with Path(__file__).with_name("seen.jsonl").open("a") as seen:
            seen.write(json.dumps(row) + "\\n")
        return ()
"""


def seen_in(folder):
    """Return what the tuner saw, a reading each, and forget it."""
    path = folder / "seen.jsonl"
    seen = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    return seen
