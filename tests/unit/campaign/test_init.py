"""`closloop init`: the campaign that it writes plans and fits as it is, whatever the answers."""

import re
from itertools import product
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from inventory.files import known_testbeds, load_testbed
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.plan import make_plan
from orchestration.campaign.skeleton import arms
from orchestration.campaign.skeleton import arms as sizes
from orchestration.campaign.skeleton.arms import (
    TUNER_COMPARISONS,
    TunerComparison,
    choose_arms,
    fitting_networks,
    transport_of,
)
from orchestration.campaign.skeleton.factors import COMPARISONS, FACTOR_COMPARISONS
from orchestration.campaign.skeleton.write import Answers, generate, unfit, write
from orchestration.cli import init as verb
from orchestration.core.errors import InputError
from orchestration.run.checked import checked
from traffic.workloads import known_workloads

GRAPHCC = load_testbed("graphcc")
ROOT = Path(__file__).parents[3]
# On these a schedule has so many flows that a plan takes a second.
LARGE = ("drlet-k8", "pet", "rlcc-64")
LOADS = list(product(known_workloads(), (True, False)))
PAIRS = [
    pytest.param(testbed, compare, marks=[pytest.mark.slow] * (testbed in LARGE))
    for testbed, compare in product(known_testbeds(), COMPARISONS)
    if unfit(COMPARISONS[compare], load_testbed(testbed)) is None
]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    app = typer.Typer()
    app.command()(verb.init)

    def invoke(*arguments, answers="", terminal=False):
        monkeypatch.setattr(verb, "_on_terminal", lambda: terminal)
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=answers)

    return invoke


def planned(file, tmp_path):
    """Return a campaign and its plan, once the checks that come before a run are passed."""
    campaign = load_campaign(file)
    checked(campaign)
    return campaign, make_plan(load_campaign(file, repeats=1), 1, tmp_path / "no-runs")


def tuners(campaign):
    return [cell["tuner"] for cell in campaign.cells]


@pytest.mark.slow
@pytest.mark.parametrize(("testbed", "compare"), PAIRS)
def test_combinations_of_answers_plan_as_they_are(testbed, compare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # two kinds of traffic for each pair, so that all of them come for some: a plan takes its time
    turn = [pair.values for pair in PAIRS].index((testbed, compare))
    for workload, incast in (LOADS * 2)[(3 * turn) % len(LOADS) :][:2]:
        place = Path(f"{workload}-{incast}.yml")
        made = generate(Answers(testbed, workload, 0.0, incast, compare), place)
        write(made)
        campaign, plan = planned(place, tmp_path)
        assert all(len(line) <= 100 for text in made.texts.values() for line in text.splitlines())
        trial = campaign.trials[0]
        one = COMPARISONS[compare]
        repeats = 6 if isinstance(one, TunerComparison) else one.repeats
        assert len(campaign.trials) == repeats * len(campaign.cells)
        assert 0 < trial.warm_up_ns < trial.duration_ns
        assert len(trial.traffic) == 1 + incast
        arriving = [one for one in plan.deliverable_loads if one.offered]
        told = "largest flows last much longer" in made.texts[place].replace("\n# ", " ")
        # a plan of one repeat may differ from what six come to
        assert told or workload == "DataMining" or all(one.share > 0.8 for one in arriving)
        names = tuners(campaign)
        if not isinstance(one, TunerComparison):
            assert set(names) == {"secn1"}
            continue
        assert names[0] == one.baseline
        placebos = [name for name in names if name.startswith(("placebo", "random"))]
        learned = {item.name for item in one.learned} & set(names)
        assert len(placebos) == len(learned)


@pytest.mark.slow
@pytest.mark.parametrize("compare", [one.name for one in TUNER_COMPARISONS])
def test_what_the_file_proposes_next_holds_too(compare, tmp_path):
    place = tmp_path / "next.yml"
    made = generate(Answers("drlet-k4", compare=compare, workload="AliStorage2019"), place)
    write(made)
    text = made.texts[place]
    proposed = re.findall(r"^#     ((?:factors|repeats|faults): .+)$", text, re.MULTILINE)
    assert [line.partition(":")[0] for line in proposed] == ["factors", "repeats", "faults"]
    changed = [
        re.sub(r"load: [\d.]+}", "load: $load}", text) + proposed[0],
        re.sub(r"^repeats: 6$", proposed[1], text, flags=re.MULTILINE),
        text + proposed[2],
        re.sub(r"^  # (- (?!.*best-static)|   )", r"  \1", text, flags=re.MULTILINE),
    ]
    for other in changed:
        assert other != text
        place.write_text(other)
        checked(load_campaign(place))


@pytest.mark.slow
def test_the_default_is_a_fair_set_and_ends_with_the_next_two_commands(run, tmp_path):
    place = tmp_path / "first.yml"
    result = run(place, "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"written: {place}",
        "next:",
        f"  closloop plan {place}",
        f"  closloop run {place}",
    ]
    campaign, plan = planned(place, tmp_path)
    assert tuners(campaign) == ["secn1", "secn2", "amt", "qaecn", "acc", "placebo-acc"]
    assert all(one.enough for one in plan.deliverable_loads)
    checked(load_campaign(place, backend="fluid"))


@pytest.mark.slow
def test_without_a_terminal_nothing_is_asked(run, tmp_path):
    result = run(tmp_path / "lab", "--testbed", "rlcc-7", "--load", "0.3", "--no-incast")
    assert result.exit_code == 0, result.output
    campaign = load_campaign(tmp_path / "lab" / "campaign.yml")
    (pattern,) = campaign.trials[0].traffic
    assert (campaign.name, campaign.trials[0].testbed) == ("lab", "rlcc-7")
    assert (pattern.workload, pattern.load) == ("WebSearch", 0.3)


@pytest.mark.slow
def test_on_a_terminal_three_questions_are_asked_and_mistakes_again(run, tmp_path):
    answers = "ecn\necn-roce\nrlcc\nrlcc-7\n3\n2\n0.4\nn\n"
    result = run(tmp_path / "asked.yml", answers=answers, terminal=True)
    assert result.exit_code == 0, result.output
    said = result.stdout
    assert all(question in said for question in ("1. What to", "2. On which", "3. Under which"))
    assert "7 hosts at 100G on one switch" in said
    assert "2 is more than rlcc-7 takes" in said
    trial = load_campaign(tmp_path / "asked.yml").trials[0]
    (pattern,) = trial.traffic
    assert (pattern.workload, pattern.load) == ("FB_Hadoop", 0.4)
    assert trial.host.congestion_control == "dcqcn" or trial.host.roce is not None


@pytest.mark.slow
def test_only_fabrics_that_suit_what_is_compared_are_offered(run, tmp_path):
    answers = "load-balancing\n\n\n\nn\n"
    result = run(tmp_path / "asked.yml", answers=answers, terminal=True)
    assert result.exit_code == 0, result.output
    assert "Number or name [drlet-k4]" in result.stdout
    assert "rlcc-7" not in result.stdout  # one path only


def test_options_are_not_asked_for(run, tmp_path):
    said = ("--testbed", "graphcc", "--workload", "FB_Hadoop", "--load", "0.5", "--incast")
    result = run(tmp_path / "x.yml", *said, "--compare", "flowlets", terminal=True)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("written: ")


@pytest.mark.slow
@pytest.mark.parametrize("compare", COMPARISONS)
def test_packaged_examples_are_what_init_writes(compare, monkeypatch):
    monkeypatch.chdir(ROOT)
    made = generate(Answers(compare=compare), Path("examples", "compare", f"{compare}.yml"))
    assert {path: path.read_text() for path in made.texts} == made.texts


@pytest.mark.parametrize("compare", [one.name for one in FACTOR_COMPARISONS])
def test_a_file_that_compares_a_factor_is_short(compare):
    text = (ROOT / "examples" / "compare" / f"{compare}.yml").read_text()
    assert len([line for line in text.splitlines() if not line.startswith("#")]) <= 16


@pytest.mark.slow
def test_nothing_is_overwritten_without_force(run, tmp_path):
    place, beside = tmp_path / "mine.yml", tmp_path / "mine-testbed.yml"
    place.write_text("mine")
    refused = run(place, "--yes").exception
    assert isinstance(refused, InputError)
    assert "exists already" in str(refused)
    place.unlink()
    beside.write_text("mine too")
    assert isinstance(run(place, "--yes", "--compare", "ecn-roce").exception, InputError)
    assert not place.exists()
    assert beside.read_text() == "mine too"
    assert run(place, "--yes", "--compare", "ecn-roce", "--force").exit_code == 0
    assert beside.read_text() != "mine too"


@pytest.mark.slow
def test_files_of_ones_own_are_named_as_the_campaign_sees_them(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my rack.yml").write_text("like: graphcc\nname: mine\ndescription: my rack\n")
    (tmp_path / "sizes.csv").write_text("bytes,cdf\n1000,0.5\n20000,1\n")
    for compare in ("ecn-tcp", "ecn-roce"):
        place = f"labs/{compare}/first.yml"
        said = ("--testbed", "./my rack.yml", "--workload", "sizes.csv", "--compare", compare)
        result = run(place, *said, "--yes")
        assert result.exit_code == 0, result.output or result.exception
        assert "../../sizes.csv" in (tmp_path / place).read_text()
        planned(place, tmp_path)
    assert "like: ../../my rack.yml" in (tmp_path / "labs/ecn-roce/first-testbed.yml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("compare", COMPARISONS)
def test_a_testbed_may_have_fields_of_its_own(compare, tmp_path):
    place = tmp_path / "labs" / "32.yml"
    write(generate(Answers("graphcc {hosts_per_leaf: 8}", compare=compare), place))
    campaign, _ = planned(place, tmp_path)
    assert {len(testbed.hosts) for testbed in campaign.testbeds.values()} == {32}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--testbed", "graphc"), "did you mean 'graphcc'"),
        (("--workload", "WebSerch"), "WebSearch"),
        (("--load", "1.2"), "hosts can send"),
        (("--load", "0"), "is no load"),
        (("--testbed", "rlcc-64", "--load", "0.6"), "its links between switches carry"),
        (("--compare", "ecn"), "use one of congestion-control"),
        (("--compare", "flowlets", "--testbed", "rlcc-7"), "a single path between two hosts"),
        (("--tuners", "secn3"), "did you mean 'secn"),
        (("--compare", "buffers", "--tuners", "acc"), "buffers compares no tuners"),
        (("--compare", "congestion-control", "--testbed", "acc-fig8"), "has traffic classes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(run, tmp_path, options, said):
    result = run(tmp_path / "x" / "x.yml", *options, "--yes")
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_name_is_made_of_the_folder_or_file(tmp_path):
    assert generate(Answers("rlcc-7"), tmp_path / "My first Lab!").name == "my-first-lab"
    assert generate(Answers("rlcc-7"), tmp_path / "a_b.yaml").file == tmp_path / "a_b.yaml"
    with pytest.raises(InputError, match="gives no name"):
        generate(Answers("rlcc-7"), tmp_path / "!.yml")


def test_a_network_is_taken_where_its_card_has_the_transport(monkeypatch, tmp_path):
    assert fitting_networks("acc", "dctcp", GRAPHCC) == tuple(
        f"acc-dctcp-{seed}" for seed in range(1, 6)
    )
    assert fitting_networks("drlet", "dctcp", GRAPHCC) == ()  # one network is of one fabric
    for name, control in (("acc-rdma-1", "dcqcn"), ("acc-rdma-2", "dcqcn"), ("acc-both", "$cc")):
        card = f'{{"tuner": "acc", "scenario": "host: {{congestion_control: {control}}}"}}'
        (tmp_path / f"{name}.json").write_text(card)
    names = ("acc-both", "acc-rdma-1", "acc-rdma-2")
    monkeypatch.setattr(arms, "PRETRAINED", tmp_path)
    monkeypatch.setattr(arms, "pretrained", lambda: names)
    monkeypatch.setattr(arms.registry, "check", lambda name, params, testbed: ())
    assert fitting_networks("acc", "dcqcn", GRAPHCC) == ("acc-rdma-1", "acc-rdma-2")
    entries = [arm.entry for arm in choose_arms(COMPARISONS["ecn-roce"], GRAPHCC).arms]
    assert "{name: acc, checkpoint: [acc-rdma-1, acc-rdma-2]}" in entries
    assert entries[-1] == "{name: random, label: placebo-acc, of: acc}"


def test_a_learned_tuner_without_a_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr(arms, "pretrained", lambda: ())
    chosen = choose_arms(COMPARISONS["ecn-tcp"], GRAPHCC)
    assert chosen.without == ("acc", "pet", "graphcc")
    assert not any("random" in arm.entry for arm in chosen.arms)
    with pytest.raises(InputError, match="no packaged network of acc was trained under dctcp"):
        choose_arms(COMPARISONS["ecn-tcp"], GRAPHCC, ("acc",))


def test_the_transport_of_a_scenario():
    assert transport_of("campaign: x") == "dctcp"
    assert transport_of("host: {congestion_control: dcqcn}") == "dcqcn"
    for several in ("host: $transport.host", "host: {congestion_control: $cc}", "a: [", "text"):
        assert transport_of(several) == ""


def test_loads_follow_what_links_between_switches_carry():
    assert sizes.usual_load(GRAPHCC) == 0.6
    assert sizes.usual_load(load_testbed("rlcc-7")) == 0.6
    # 16 hosts share four uplinks, and three quarters of all flows leave a rack
    assert sizes.uplink_ratio(load_testbed("rlcc-64")) == pytest.approx(4 * 48 / 63)
    assert sizes.usual_load(load_testbed("rlcc-64")) == 0.25
    incast = sizes.incast(load_testbed("drlet-k4"))
    assert incast.fan_in * incast.size_bytes <= 1_500_000 / 2
