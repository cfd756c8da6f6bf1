"""Concurrent flows and samples of flows in a campaign file: what they become, and refusals."""

import pytest

from orchestration.campaign.expand import load_campaign
from orchestration.campaign.plan import make_plan
from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec
from traffic.patterns.concurrent import ConcurrentSpec

CAMPAIGN = """
campaign: own
testbed: rlcc-7
backend: BACKEND
host: {congestion_control: CONTROL}
tuners: [secn1]
traffic:
  - {kind: concurrent, FIELDS}
flow_sample_period: PERIOD
duration: 2ms
"""


def load(tmp_path, fields, *, backend="emulated", control="dcqcn", period="1ms"):
    text = CAMPAIGN.replace("FIELDS", fields).replace("BACKEND", backend)
    path = tmp_path / "campaign.yml"
    path.write_text(text.replace("CONTROL", control).replace("PERIOD", period))
    return load_campaign(path, repeats=1)


def test_a_pattern_and_its_period_survive_the_trials_json(tmp_path):
    fields = "flows: 50, receiver: h7, senders: 3, size: 64KB, start: 1us, within: 1ms, spread: 9us"
    (trial,) = load(tmp_path, fields).trials
    assert trial.traffic == (ConcurrentSpec(50, 64_000, 1_000, "h7", 3, 1_000_000, 9_000),)
    assert trial.flow_sample_period_ns == 1_000_000
    assert TrialSpec.from_json(trial.to_json()) == trial


def test_a_plan_counts_what_the_lines_can_carry_of_flows_that_last(tmp_path):
    plan = make_plan(load(tmp_path, "flows: 600, receiver: h7"), 1, tmp_path)
    # 2 ms of one line of 100 Gbit/s
    assert plan.trials[0].offered_bytes == pytest.approx(25_000_000, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "changes", "words"),
    [
        ("flows: 9", {"control": "dctcp"}, "flows without a size need RoCE NICs"),
        ("flows: 9", {"backend": "fluid"}, "no RoCE NICs, which dcqcn is for"),
        ("flows: 9, size: 1KB", {"control": "dctcp"}, "only flows of RoCE NICs can be sampled"),
        ("flows: 9", {"period": "150us"}, "not a multiple of sample_period 100us"),
        ("flows: 9, start: 1ms, within: 500us, spread: 500us", {}, "start at 2ms"),
        ("flows: 9, senders: 3", {}, "without a receiver all hosts send"),
        ("flows: 9, receiver: h1, senders: 7", {}, "use 1 to 6"),
        ("flows: 20000000", {}, "20,000,000 flows are more than 10,000,000"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, fields, changes, words):
    with pytest.raises(InputError) as caught:
        load(tmp_path, fields, **changes)
    assert words in str(caught.value)
