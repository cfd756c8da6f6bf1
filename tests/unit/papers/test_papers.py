"""Figures, verdicts and campaign files of the papers."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from orchestration.analysis.flow_metrics import DoneFlows, FlowProgress, done_flows, flow_figure
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.port_metrics import measure_throughput
from orchestration.analysis.trial_metrics import written_load
from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.campaign.plan import make_plan
from orchestration.core.errors import InputError
from orchestration.core.records import Samples
from orchestration.core.topology import Device, LinkSpec, Testbed, TrafficClass
from orchestration.papers.claims import Section, load_campaigns, load_claims, move_stale_trials
from orchestration.papers.page_data import amount, renew_sections
from orchestration.papers.results import evaluate_section, is_placebo, read_measured_trials
from orchestration.results.reader import finished_trials, read_trial

FOLDER = Path(__file__).parents[3] / "examples" / "papers"
FILES = sorted(path.stem for path in FOLDER.glob("*.yml"))
CLAIMS = load_claims()


def loaded(name: str) -> Campaign:
    return load_campaign(FOLDER / f"{name}.yml")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_campaign_can_be_planned_and_is_named_as_its_file(name: str, tmp_path: Path) -> None:
    campaign = loaded(name)
    assert campaign.name == name
    plan = make_plan(campaign, 2, tmp_path)
    assert all(trial.flows for trial in plan.trials)
    assert plan.wall_s < 15 * 60


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({section.campaign for section in CLAIMS.sections}))
def test_claims_speak_of_the_campaigns_tuners_and_levels(name: str) -> None:
    cells = loaded(name).cells
    for section in (section for section in CLAIMS.sections if section.campaign == name):
        arms = {str(cell[section.compare or "tuner"]) for cell in cells}
        assert any(is_placebo(arm) for arm in arms)
        assert arms & {"best-static", "best-dcqcn"}
        claims = [claim for claim in CLAIMS.claims if claim.section == section.id]
        named = {section.reference, *section.learned, *section.arms}
        named |= {arm for item in section.printed for arm in item.arms}
        named |= {arm for claim in claims for arm in (claim.arm, claim.against) if arm}
        assert named <= arms
        for when in (*(i.when for i in section.printed), *(c.when for c in claims), section.only):
            assert any(when.items() <= cell.items() for cell in cells), when


def test_every_campaign_of_a_paper_has_a_section() -> None:
    papers = {name for name in FILES if not name.startswith("search-")}
    assert papers == {section.campaign for section in CLAIMS.sections}


def test_figures_of_a_trial_by_hand(campaign: Path) -> None:
    result = read_trial(finished_trials(campaign)[0])
    flows, schedule = done_flows(result), result.table("schedule")
    mice = schedule["bytes"] <= 100_000
    fct = result.table("flows")["fct_ns"]
    assert flow_figure(METRICS["mice_mean"], flows) == pytest.approx(fct[mice].mean())
    early = flows.within(0, 1_000_000)
    assert len(early.start_ns) == np.count_nonzero(schedule["start_ns"] < 1_000_000)

    figures = measure_throughput(result)
    window = result.ports.qlen_bytes[result.ports.t_ns <= result.spec.duration_ns]
    assert figures["queue_mean"] == pytest.approx(window.mean())
    assert figures["queue_std"] == pytest.approx(window.std())
    assert 0.1 * 24 * 25e9 < figures["throughput"] < 0.6 * 24 * 25e9
    assert 0 < figures["receiver_throughput"] < 25e9
    assert "class_share" not in figures


def test_steady_figures_of_flows_by_hand() -> None:
    # two flows of 1 and 3 MB in 1 ms to one host of 100 Gbit/s, after a start that does not count
    progress = FlowProgress(
        t_ns=np.array([0, 1_000_000, 2_000_000]),
        acked_bytes=np.array([[0, 0], [10**6, 10**6], [2 * 10**6, 4 * 10**6]]),
        rtts=np.array([[0, 0], [10, 10], [20, 40]]),
        rtt_sum_ns=np.array([[0, 0], [900_000, 900_000], [1_000_000, 1_500_000]]),
        base_rtt_ns=np.array([5_000.0, 10_000.0]),
        line_bps=100e9,
        dropped=np.array([0, 70, 80]),
        flows=5,
    )
    steady = progress.since(1_000_000)
    assert steady.goodput() == pytest.approx(4e6 * 8 / 1e-3 / 100e9)
    assert steady.rtt_ns() == pytest.approx((10_000 + 20_000) / 2)
    assert steady.rtt_inflation() == pytest.approx((2 + 2) / 2)
    assert steady.power() == pytest.approx(0.32 / 2)
    assert steady.fairness() == pytest.approx(16 / (2 * (1 + 9)))
    assert (steady.lost_ever(), steady.lost(), progress.lost()) == (16, 2, 16)
    silent = dataclasses.replace(steady, rtts=np.array([[10, 10], [20, 10]]))
    assert silent.rtt_ns() == pytest.approx(10_000), "a flow that measured nothing is left out"


def test_an_iteration_lasts_until_its_last_message() -> None:
    start = np.array([0, 0, 0, 50, 50])
    flows = DoneFlows(
        start, np.ones(5, dtype=np.int64), np.array([3.0, 9.0, 4.0, 2.0, 5.0]), np.ones(5)
    )
    assert flow_figure(METRICS["iteration_mean"], flows) == (9 + 5) / 2


def test_levels_of_a_factor_are_compared_if_a_section_says_so(campaign: Path) -> None:
    (one, *_) = read_measured_trials(campaign, lambda *_: None)
    trials = tuple(
        dataclasses.replace(one, cell={"tuner": "t", "flows": 4, "control": name})
        for name in ("swift", "dcqcn")
    )
    section = SECTION.model_copy(update={"compare": "control"})
    result = evaluate_section(section, trials)
    (condition,) = result.conditions
    assert condition.factors == {"flows": 4}
    assert set(condition.repeats) == {"swift", "dcqcn"}
    # what the campaign compares is compared if the section names nothing, one tuner at a time
    both = tuple(
        dataclasses.replace(
            one, cell={"tuner": tuner, "host.control": name}, compare="host.control"
        )
        for tuner in ("t", "u")
        for name in ("swift", "dcqcn")
    )
    for compare in ("", "control", "host.control"):
        result = evaluate_section(SECTION.model_copy(update={"compare": compare}), both)
        assert [item.factors for item in result.conditions] == [{"tuner": "t"}, {"tuner": "u"}]
        assert all(set(item.repeats) == {"swift", "dcqcn"} for item in result.conditions)


def test_the_sections_of_one_paper_are_renewed() -> None:
    def page(word: str) -> str:
        return (
            f"# Results: what\n{word}\n\n## How to read it\n\n{word}\n"
            f"\n## A: one\n\n{word}\n\n## B: two\n\n{word}\n"
        )

    old, new = page("old"), page("new")
    text = renew_sections(old, new, "B")
    assert text.startswith("# Results: what\nnew\n")
    assert text.endswith("## How to read it\n\nnew\n\n## A: one\n\nold\n\n## B: two\n\nnew\n")
    # a section that the former page did not have
    assert "## B: two\n\nnew" in renew_sections(old.replace("B: two", "C: two"), new, "A")


class SharedPort:
    """A trial on one switch: 80 of 100 bytes to h1 are of the first class, whose weight is 70."""

    testbed = Testbed.build(
        "two",
        [Device("h1", "host", 0), Device("h2", "host", 0), Device("s", "switch", 1)],
        [LinkSpec("h1", "s", 10**9, 100), LinkSpec("h2", "s", 10**9, 100)],
        mtu_bytes=1500,
        buffer_bytes=10**6,
        classes=[TrafficClass("rdma", 70), TrafficClass("tcp", 30)],
    )

    facts = MappingProxyType({"load": {"offered_load": 0.6, "delivered_load": None}})

    class spec:  # noqa: N801
        measured_ns = 0, 1000
        traffic = ()

    ports = Samples(
        np.array([0, 1000]),
        {
            "tx_bytes": np.array([[0, 0, 0, 0], [80_000, 20_000, 5_000, 5_000]]),
            "tx_packets": np.array([[0, 0, 0, 0], [60, 15, 60, 15]]),
            "qlen_bytes": np.array([[4, 2, 0, 0], [4, 2, 0, 0]]),
        },
    )

    def table(self, name: str) -> dict[str, np.ndarray]:
        return {"dst": np.array(["h1", "h2"], dtype=object), "bytes": np.array([10, 1])}


def test_classes_at_the_receivers_port() -> None:
    figures = measure_throughput(SharedPort())  # type: ignore[arg-type]
    assert figures["class_share"] == pytest.approx(0.8)
    assert figures["class_shortfall"] == pytest.approx(1 - 0.8 / 0.7)
    assert figures["class_unfairness"] == pytest.approx(0.8 / 0.7 - 1)
    assert figures["class_fairness"] == pytest.approx(0.7 / 0.8)
    assert figures["receiver_queue_mean"] == 3
    assert written_load(SharedPort()) == {"offered_load": 0.6}  # type: ignore[arg-type]
    assert figures["receiver_throughput"] == pytest.approx((100_000 - 66 * 75) * 8e9 / 1000)


SECTION = Section(
    id="s",
    paper="P",
    title="t",
    campaign="c",
    setting="",
    reference="old",
    learned=("new",),
    metrics=("slowdown_mean",),
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (398e9, "bps", "398Gbps"),
        (94.24e9, "bps", "94.2Gbps"),
        (1.5e9, "bps", "1.5Gbps"),
        (0.0, "bps", "0bps"),
        (math.nan, "bps", "–"),
        (-1e-9, "share", "0.00%"),
        (math.nan, "share", "–"),
        (12_600, "bytes", "12.6KB"),
    ],
)
def test_amounts(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text  # type: ignore[arg-type]


def test_only_trials_that_are_not_described_any_more_are_put_aside(tmp_path: Path) -> None:
    campaign = loaded("pet-fig4")
    folder = tmp_path / campaign.name
    for name in (campaign.trials[0].id, "old-1", "old-2"):
        (folder / name).mkdir(parents=True)
        (folder / name / "trial.json").write_text("{}")
    assert move_stale_trials(campaign, tmp_path) == 2
    assert [path.name for path in finished_trials(folder)] == [campaign.trials[0].id]
    (folder / "old-1").mkdir()
    (folder / "old-1" / "trial.json").write_text("{}")
    assert move_stale_trials(campaign, tmp_path) == 1
    kept = {path.name for path in (tmp_path / f"{campaign.name}.stale").iterdir()}
    assert kept == {"old-1", "old-1.1", "old-2"}


def test_a_folder_without_campaigns_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--campaigns"):
        load_campaigns(tmp_path, [])


def test_a_file_that_is_searched_is_not_run() -> None:
    with pytest.raises(InputError, match=r"closloop search .*search-rlcc\.yml"):
        load_campaigns(FOLDER, ["search-rlcc"])


def test_mistakes_in_a_claims_file_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "claims.yml"
    path.write_text(
        "sections: []\n"
        "claims:\n"
        "  - {section: no, text: t, says: s, metric: queue_men, arm: a, direction: value}\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError) as caught:
        load_claims(path)
    said = str(caught.value)
    expected = (
        "no section 'no'",
        "did you mean 'queue_mean'?",
        "a claim about a value has no range",
    )
    for what in expected:
        assert what in said
