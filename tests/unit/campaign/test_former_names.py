"""Names that 0.2 had: DCQCN's set `hpcc`, now `hpcc-0.2`, and the folder of search results."""

import json
import re
import shutil
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.analysis.stamp import cautions, check_network
from orchestration.campaign.expand import load_campaign
from orchestration.core.condition import labels_of
from orchestration.core.errors import InputError
from orchestration.datapath.policy_dcqcn import DCQCN_SETS, dcqcn_set
from orchestration.exchange.hpcc_config import control_of
from orchestration.papers.page_data import Caution, PageData
from orchestration.papers.results import _cautions
from orchestration.papers.results_page import opening
from orchestration.replay.campaign_file import _roce
from orchestration.results.reader import read_trial
from orchestration.run.folder import RunFolder
from tuners.learning.checkpoint import pretrained

RATES = ("rpg_ai_rate", "rpg_hai_rate", "rpg_min_rate")
CAMPAIGN = """\
campaign: old
testbed: {testbed}
tuners: [secn1]
traffic: [{{kind: flow, src: h1, dst: h2, size: 1MB, start: 0ms}}]
host: {{congestion_control: dcqcn, roce: {{dcqcn: $nics}}}}
factors: {{nics: {nics}}}
repeats: 1
duration: 1ms
"""
# A network that says nothing else, so that each card that must warn does.
OTHERS = re.compile(r"(acc|pet|graphcc|pet-without-flows)-dcqcn-\d")


def campaign(folder, nics, testbed="graphcc"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "campaign.yml"
    file.write_text(CAMPAIGN.format(nics=nics, testbed=testbed))
    return file


def finish(folder, trial):
    """Leave a trial's record in a run folder, as closloop 0.2 wrote it."""
    (folder / trial.id).mkdir()
    record = {
        "format": 1,
        "id": trial.id,
        "seed": trial.seed,
        "spec": trial.to_json(),
        "stamp": {"valid": True, "reasons": [], "checked": []},
        "versions": {"closloop": "0.2.0"},
        "facts": {},
    }
    (folder / trial.id / "trial.json").write_text(json.dumps(record))


@pytest.fixture
def old_run(tmp_path):
    """A run folder of 0.2: its campaign names `hpcc`, its trial has what that was then."""
    file = campaign(tmp_path, "{hpcc: hpcc-0.2}")
    (trial,) = load_campaign(file).trials
    campaign(tmp_path, "[hpcc]")
    (tmp_path / "journal.jsonl").write_text("")
    finish(tmp_path, trial)
    return file, trial


@pytest.mark.parametrize("gbps", [1, 10, 25, 40, 50, 100, 200, 400, 800])
def test_the_set_is_run_pys_at_every_rate(gbps):
    values, theirs = dcqcn_set("hpcc", gbps * 10**9), control_of("dcqcn", gbps * 10**9).values
    # run.py: ai = 5 * bw / 25, hai = 50 * bw / 25, MIN_RATE 1000Mb/s
    expected = [max(1, 5 * gbps // 25), max(1, 50 * gbps // 25), 1000]
    assert [values[name] for name in RATES] == expected
    assert [f"{rate}Mb/s" for rate in expected] == [
        theirs[name] for name in ("RATE_AI", "RATE_HAI", "MIN_RATE")
    ]
    assert values["rpg_time_reset"] == int(theirs["RP_TIMER"])
    assert values["dce_tcp_rtt"] == int(theirs["ALPHA_RESUME_INTERVAL"])
    assert values["rate_reduce_monitor_period"] == int(theirs["RATE_DECREASE_INTERVAL"])
    assert 1 - values["dce_tcp_g"] / 1024 == float(theirs["EWMA_GAIN"])
    # the other sets are the same at every rate
    assert all(dcqcn_set(name, gbps * 10**9) == DCQCN_SETS[name] for name in ("mlx5", "hpcc-0.2"))


def test_a_campaigns_set_goes_by_its_testbeds_nics(tmp_path):
    file = campaign(tmp_path, "[hpcc]", "rlcc-7")
    (trial,) = load_campaign(file).trials
    (rate,) = load_testbed("rlcc-7").nic_rates_bps
    assert trial.host.roce.parameters == dcqcn_set("hpcc", rate) != DCQCN_SETS["hpcc"]
    # a replay says the values, so that it means the same on NICs of another rate
    assert _roce(trial.host.roce)["dcqcn"].items() >= {"rpg_min_rate": 1000}.items()
    assert _roce(trial.host.roce)["dcqcn"]["set"] == "mlx5"


def test_a_set_by_rate_is_refused_where_nics_have_several(tmp_path):
    bed = tmp_path / "bed.yml"
    bed.write_text(
        "kind: custom\nname: two-rates\nmtu: 1500B\nbuffer: 1MB\nhosts: [h1, h2]\n"
        "switches: [{name: s1, tier: 1}]\nlinks:\n"
        "  - {a: h1, b: s1, rate: 25Gbps, delay: 1us}\n"
        "  - {a: h2, b: s1, rate: 100Gbps, delay: 1us}\n"
    )
    with pytest.raises(InputError) as caught:
        load_campaign(campaign(tmp_path, "[hpcc]", bed))
    assert "rpg_ai_rate and rpg_hai_rate depend on the NICs' rate" in str(caught.value)
    assert "25Gbps and 100Gbps" in str(caught.value)
    given = "{own: {set: hpcc, rpg_ai_rate: 5, rpg_hai_rate: 50}}"
    (trial,) = load_campaign(campaign(tmp_path, given, bed)).trials
    assert [trial.host.roce.parameters[name] for name in RATES] == [5, 50, 1000]


def test_an_old_run_folders_campaign_means_what_it_meant(old_run, tmp_path):
    file, trial = old_run
    (read,) = load_campaign(file).trials
    assert [read.host.roce.parameters[name] for name in RATES] == [50, 100, 100]
    assert read.id == trial.id
    # elsewhere, or where the file knows the present name, hpcc is hpcc
    (new,) = load_campaign(campaign(tmp_path / "elsewhere", "[hpcc]")).trials
    assert [new.host.roce.parameters[name] for name in RATES] == [5, 50, 1000]
    both = load_campaign(campaign(file.parent, "[hpcc, hpcc-0.2]")).trials
    assert {one.host.roce.parameters["rpg_ai_rate"] for one in both} == {5, 50}


def test_an_old_trial_is_shown_under_the_present_name(old_run):
    file, trial = old_run
    result = read_trial(file.parent / trial.id)
    assert result.spec.cell["nics"] == "hpcc"
    assert labels_of(result.spec) == {"nics": "hpcc-0.2", "tuner": "secn1"}
    assert _roce(result.spec.host.roce)["dcqcn"] == {"set": "hpcc-0.2"}


def test_an_old_run_is_not_continued_with_other_parameters(old_run, tmp_path):
    file, _ = old_run
    other = load_campaign(campaign(tmp_path / "mine", "[hpcc]"))
    with pytest.raises(InputError) as caught, RunFolder(file.parent) as folder:
        folder.open(other, fresh=False)
    own = f"closloop run {file} --out {file.parent.parent}"
    assert f"go on with the DCQCN set that is hpcc-0.2 now: {own}; or " in str(caught.value)
    # which means these trials
    with RunFolder(file.parent) as folder:
        folder.open(load_campaign(file), fresh=False)


def test_networks_say_under_which_set_they_were_trained(tmp_path):
    warned = {name for name in pretrained() if cautions([name])}
    assert warned == {name for name in pretrained() if OTHERS.fullmatch(name)}
    assert len(warned) >= 15
    (text,) = cautions(sorted(warned) * 2)
    assert "acc-dcqcn-1, acc-dcqcn-2" in text
    assert "rpg_ai_rate 50, rpg_hai_rate 100, rpg_min_rate 100" in text
    file = campaign(tmp_path, "[mlx5]")
    file.write_text(
        file.read_text().replace("[secn1]", "[secn1, {name: acc, checkpoint: acc-dcqcn-1}]")
    )
    found = {one.tuner.name: check_network(one) for one in load_campaign(file).trials}
    assert found["secn1"] is None
    assert [reason.severity for reason in found["acc"]] == ["warning"]


def test_a_network_of_a_later_closloop_says_nothing(tmp_path):
    from tuners.learning.checkpoint import load, save

    trained = load("acc-dcqcn-1")
    path = tmp_path / "own.safetensors"
    card = {key: value for key, value in trained.card.items() if key != "format"}
    for version, warns in (("0.2.0", True), ("0.3.0.dev0", False), ("1.0", False)):
        mine = path.with_stem(f"own-{version.replace('.', '-')}")
        save(mine, trained.arrays, {**card, "versions": {"closloop": version}})
        assert bool(cautions([str(mine)])) is warns


def test_a_results_page_says_what_is_to_be_run_again(old_run):
    _, trial = old_run
    cautions = tuple(Caution("GraphCC", text) for text in _cautions(trial))
    assert len(cautions) == 1
    page = opening(PageData(cautions=cautions), "picture.svg")
    assert "**To be run again** (GraphCC): trials under DCQCN had the DCQCN set hpcc-0.2" in page
    # the page keeps saying so while only another paper's part is written again
    merged = PageData().merged_into(PageData(cautions=cautions), ["GraphCC", "ACC"], "ACC")
    assert merged.cautions == cautions


def test_a_search_result_is_read_from_the_folder_that_was_renamed(tmp_path):
    golden = Path(__file__).parents[2] / "golden" / "campaigns"
    file = tmp_path / "campaign.yml"
    text = (golden / "found-settings.yml").read_text(encoding="utf-8")
    file.write_text(text.replace("search-results/", "found/"), encoding="utf-8")
    with pytest.raises(InputError, match=r"there is no .*found/by-load.yml"):
        load_campaign(file)
    shutil.copytree(golden / "search-results", tmp_path / "search-results")
    moved = load_campaign(file).trials
    assert [trial.id for trial in moved] == [
        trial.id for trial in load_campaign(golden / "found-settings.yml").trials
    ]
    # a file where the campaign says comes first
    former = tmp_path / "found" / "by-load.yml"
    former.parent.mkdir()
    found = (tmp_path / "search-results" / "by-load.yml").read_text(encoding="utf-8")
    former.write_text(found.replace('tuner: "static"', 'tuner: "timeout"'), encoding="utf-8")
    with pytest.raises(InputError, match="has settings of tuner 'timeout'"):
        load_campaign(file)
