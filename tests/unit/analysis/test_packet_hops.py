"""A packet-hop is one thing: counted from tables, kept as a fact, told apart where it was not."""

import dataclasses
import json
from unittest.mock import MagicMock

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.port_metrics import PACKET_HOP, packet_hops, trial_packet_hops
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.core.records import Samples
from orchestration.results.reader import finished_trials, read_trial
from orchestration.run.launcher import run_campaign

CAMPAIGN = """\
campaign: hops
testbed: graphcc
backend: fluid
tuners: [secn1]
traffic:
  - {kind: flow, src: h1, dst: h2, size: 1448KB}
repeats: 1
duration: 1ms
"""


def test_nics_count_beside_switch_ports():
    testbed = load_testbed("graphcc")
    sent, dropped = np.zeros((2, 2, len(testbed.queues)), dtype=np.int64)
    (down,) = (n for n, q in enumerate(testbed.queues) if testbed.peer_device(q).name == "h2")
    sent[1, down], dropped[1, down] = 1_000, 7
    same = np.zeros_like(sent)
    ports = Samples.of("queue", np.array([0, 1]), same, same, sent, same, dropped)
    # h1's NIC sent what h2's port sent or dropped
    assert packet_hops(testbed, ports) == 1_000 + 1_007


@pytest.fixture
def trial(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text(CAMPAIGN)
    run_campaign(load_campaign(path), FluidBackend(), tmp_path / "runs", 1, MagicMock())
    (folder,) = finished_trials(tmp_path / "runs" / "hops")
    return read_trial(folder)


def test_a_trial_has_its_packet_hops_and_what_one_is(trial):
    hops, meaning = trial_packet_hops(trial)
    assert hops == trial.facts["packet_hops"] == 2 * 1_000
    # a fluid has no acknowledgements to count
    assert meaning == trial.facts["packet_hop"] != PACKET_HOP
    assert meaning.startswith(PACKET_HOP)


@pytest.mark.parametrize(
    ("backend", "said"),
    [("emulated", "by a switch port, as an earlier"), ("simulated", "by a NIC")],
)
def test_a_trial_of_an_earlier_version_says_what_it_counted(trial, backend, said):
    """Without samples there is only its own number, of which it does not say what it is."""
    file = trial.folder / "trial.json"
    about = json.loads(file.read_text())
    about["facts"] = {"packet_hops": 1_000}
    file.write_text(json.dumps(about))
    (trial.folder / "ports.parquet").unlink()
    old = read_trial(trial.folder)
    old = dataclasses.replace(old, spec=dataclasses.replace(old.spec, backend=backend))
    hops, meaning = trial_packet_hops(old)
    assert hops == 1_000
    assert said in meaning
