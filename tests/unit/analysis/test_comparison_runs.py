import dataclasses
import itertools
import json
import re
import shutil

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from orchestration.analysis.comparison.blocks import comparison_blocks, comparison_page
from orchestration.analysis.comparison.equivalence import Margins
from orchestration.analysis.comparison.result import compare_runs
from orchestration.analysis.comparison.runs import open_runs, pair_trials
from orchestration.analysis.comparison.sentences import needs
from orchestration.analysis.stamp import stamp
from orchestration.cli.compare import compare
from orchestration.core.errors import InputError
from orchestration.core.records import MISSING, Samples
from orchestration.core.trial import HostSpec, TunerSpec
from orchestration.render.terminal import lines
from orchestration.results.stamp import Reason, Stamp
from orchestration.results.writer import write_trial
from traffic.patterns.single_flow import SingleFlowSpec


def write(folder, case, **changes):
    trial = dataclasses.replace(case.trial, **changes)
    verdict = stamp(trial, case.testbed, case.schedule, case.record)
    facts = {"wall_s": 2.0}
    place = folder / trial.id
    write_trial(place, trial, case.testbed, case.schedule, case.record, verdict, facts)
    return place


@pytest.fixture(scope="module")
def runs(cases, tmp_path_factory):
    """Two runs of five seeds: `first` with secn1's queues, `other` with secn2's."""
    folder = tmp_path_factory.mktemp("runs")
    for tuner, name in (("secn1", "first"), ("secn2", "other")):
        for seed in range(1, 6):
            write(folder / name, cases(tuner, seed), cell={"tuner": "ecn"})
    return folder


@pytest.fixture
def one(runs, tmp_path):
    """A copy of one trial, to be damaged, and the trial itself."""
    original = sorted((runs / "first").iterdir())[0]
    return shutil.copytree(original, tmp_path / "damaged"), original


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(compare)

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


def metrics(result):
    (comparison,) = json.loads(result.stdout)["comparisons"]
    return comparison, {m["metric"]: m for c in comparison["cells"] for m in c["metrics"]}


def rewrite(path, change):
    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)


def test_a_run_is_equivalent_to_itself_and_exits_with_0(run, runs):
    result = run(runs / "first", runs / "first", "--json", "--no-html")
    assert result.exit_code == 0, result.output
    comparison, found = metrics(result)
    assert comparison["verdict"] == "equivalent"
    assert len(found) >= 15
    assert all(item["difference"] == 0 for key, item in found.items() if key != "fct_ratio")
    assert comparison["cells"][0]["parting"]["parted_ns"] is None
    assert comparison["cells"][0]["causes"] == []


def test_a_run_whose_repeats_are_far_apart_is_equivalent_to_itself(cases, tmp_path):
    for seed in (1, 2):
        write(tmp_path / "few", cases("secn1", seed, 60_000))
    (comparison,) = compare_runs([tmp_path / "few", tmp_path / "few"], Margins())
    assert {item.verdict for item in comparison.metrics} == {"equivalent"}
    assert comparison.verdict == "equivalent"


def test_one_trial_is_equivalent_to_its_copy(run, one):
    result = run(*one, "--json", "--no-html")
    assert result.exit_code == 0, result.output
    assert metrics(result)[0]["verdict"] == "equivalent"


def test_other_thresholds_are_found_different_and_named_first(run, runs):
    result = run(runs / "first", runs / "other", "--json", "--no-html")
    assert result.exit_code == 1
    comparison, found = metrics(result)
    assert comparison["verdict"] == "different"
    different = {key for key, item in found.items() if item["verdict"] == "different"}
    assert different & {
        "slowdown_p50_all",
        "slowdown_mean_all",
        "queue_mean_bytes",
        "slowdown_ks",
    }, different
    low, high = (found["queue_mean_bytes"][f"relative_{end}"] for end in ("low", "high"))
    assert low < found["queue_mean_bytes"]["relative"] < high
    causes = [cause["what"] for cause in comparison["cells"][0]["causes"]]
    assert {"kmin as read back", "kmax as read back"} <= set(causes[:4])
    assert comparison["cells"][0]["pairs"][0]["flows_only_in_a"] == 0


@pytest.mark.slow
def test_the_margin_decides(run, runs):
    wide = [f"{name}=99%" for name in ("slowdown_ks", "slowdown_wasserstein", "queue_wasserstein")]
    flags = [flag for text in ["99%", *wide] for flag in ("--margin", text)]
    _, found = metrics(run(runs / "first", runs / "other", "--json", "--no-html", *flags))
    assert found["fct_mean_ns_all"]["verdict"] == "equivalent"
    _, found = metrics(
        run(runs / "first", runs / "other", "--json", "--no-html", "--margin", "fct_mean=0.1%")
    )
    assert found["fct_mean_ns_all"]["verdict"] != "equivalent"


def test_the_tables_fit_eighty_columns_and_begin_with_the_answer(run, runs):
    result = run(runs / "first", runs / "other")
    assert result.stdout.startswith("Different: ")
    shown = lines(comparison_blocks(compare_runs([runs / "first", runs / "other"], Margins())), 80)
    assert max(len(line) for line in shown.splitlines()) <= 80
    for said in ("mean slowdown", "needs", "Likely causes", "packet-hops", "By port:", "By time:"):
        assert said in result.stdout
    assert "page: compare.html" in result.stderr


@pytest.mark.slow
def test_the_page_shows_every_picture_and_fetches_nothing(runs):
    margins = Margins()
    page = comparison_page(compare_runs([runs / "first", runs / "other"], margins))
    text = page[page.index("</head>") :]
    drawn = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert text.count("<figure>") == len(drawn) == 7
    for picture in drawn:
        go.Figure(json.loads(picture))  # raises for an attribute that plotly does not know
    for said in ("Verdicts", "Where the runs differ", "Likely causes", "Speed", "Software"):
        assert said in text
    assert "src=" not in text
    assert text.count("href=") == text.count('href="#content"') == 1
    three = comparison_page(compare_runs([runs / "first", runs / "other", runs / "first"], margins))
    assert three[three.index("</head>") :].count("<figure>") > 7
    assert "C, first on fluid" in three


def test_trials_pair_by_seed_then_by_repeat_and_a_replay_with_its_parent(cases, tmp_path):
    for seed in (1, 2):
        write(tmp_path / "a", cases("secn1", seed))
    for seed in (2, 3):
        write(tmp_path / "b", cases("secn1", seed))
    write(tmp_path / "c", cases("secn1", 1), seed=77, repeat=4)
    parent = sorted((tmp_path / "a").iterdir())[1]
    write(tmp_path / "d", cases("secn2", 2), seed=5, parent=f"a/{parent.name} sha256:00")
    a, b, c, d = open_runs([tmp_path / name for name in "abcd"])
    (cell,) = pair_trials(a, b).cells
    assert [(a.spec.seed, b.spec.seed) for a, b in cell.pairs] == [(2, 2)]
    (cell,) = pair_trials(a, c).cells
    assert [(a.spec.seed, b.spec.seed) for a, b in cell.pairs] == [(1, 77)]
    assert "no seed is in both" in cell.paired_by
    (cell,) = pair_trials(a, d).cells
    assert [(a.folder, b.spec.seed) for a, b in cell.pairs] == [(parent, 5)]
    assert cell.paired_by == "the replay's parent"


def test_folders_of_campaigns_are_compared_campaign_by_campaign(cases, tmp_path):
    for side in ("before", "after"):
        for campaign, load in (("low", 0.3), ("high", 0.3)):
            case = cases("secn1", 1)
            write(tmp_path / side / campaign, case, campaign=campaign, cell={"load": load})
    write(tmp_path / "before" / ".aside", cases("secn2", 1))
    a, b = open_runs([tmp_path / "before", tmp_path / "after"])
    found = {cell.label: cell.pairs for cell in pair_trials(a, b).cells}
    assert sorted(found) == ["high, secn1, load 0.3", "low, secn1, load 0.3"]
    for label, pairs in found.items():
        (pair,) = pairs
        assert {trial.spec.campaign for trial in pair} == {label.partition(",")[0]}
    # a campaign by itself meets the one of the other folder that has its cell
    (alone,) = open_runs([tmp_path / "before" / "low", tmp_path / "after"])[:1]
    one = dataclasses.replace(b, trials=b.trials[:1])
    assert [cell.label for cell in pair_trials(alone, one).cells] == ["secn1, load 0.3"]


def test_a_factor_whose_name_begins_with_tuner_keeps_cells_apart(cases, tmp_path):
    for name in ("a", "b"):
        for gain in (1, 2):
            cell = {"tuner": "secn1", "tuner_gain": gain}
            write(tmp_path / name, cases("secn1", gain), cell=cell)
    pairing = pair_trials(*open_runs([tmp_path / "a", tmp_path / "b"]))
    labels = [cell.label for cell in pairing.cells]
    assert sorted(labels) == ["secn1, tuner_gain 1", "secn1, tuner_gain 2"]


def test_cells_pair_by_their_arms_whatever_is_compared(cases, tmp_path):
    factors = {"a": "control", "b": "host.congestion_control", "c": "arm"}
    for run, name in factors.items():
        for seed, (arm, load) in enumerate(itertools.product(("dctcp", "cubic"), (0.3, 0.6))):
            cell = {"tuner": f"of-{run}", name: arm, "load": load}
            write(tmp_path / run, cases("secn1", seed + 1), cell=cell)
        declared = f"{{{name}: [dctcp, cubic], load: [0.3, 0.6]}}"
        text = f"factors: {declared}\ncompare: {name}\n"
        (tmp_path / run / "campaign.yml").write_text(text if run != "c" else "arms: {cubic: {}}\n")
    a, b, c = open_runs([tmp_path / run for run in factors])
    for other, name in ((b, "host.congestion_control"), (c, "arm")):
        pairing = pair_trials(a, other)
        assert sorted(cell.label for cell in pairing.cells) == sorted(
            ", ".join(sorted([f"control {arm}", f"load {load}"]))
            + " against "
            + ", ".join(sorted([f"{name} {arm}", f"load {load}"]))
            for arm in ("dctcp", "cubic")
            for load in (0.3, 0.6)
        )
        for cell in pairing.cells:
            ((one, two),) = cell.pairs
            assert one.spec.seed == two.spec.seed
        assert not pairing.unpaired


def test_what_is_in_one_run_only_is_said(cases, tmp_path):
    for name, tuners in (("a", ("secn1", "secn2")), ("b", ("secn1",))):
        for tuner in tuners:
            write(tmp_path / name, cases(tuner, 1))
    a, b = open_runs([tmp_path / "a", tmp_path / "b"])
    pairing = pair_trials(a, b)
    assert [cell.label for cell in pairing.cells] == ["secn1, load 0.6"]
    assert pairing.unpaired == ("secn2, load 0.6: only in A",)


def test_invalid_trials_are_left_out_and_named(cases, tmp_path, runs):
    case = cases("secn1", 1)
    case.record.flows.status[0], case.record.flows.end_ns[0] = 1, -1
    write(tmp_path / "bad", case)
    write(tmp_path / "mixed", case)
    write(tmp_path / "mixed", cases("secn1", 2), cell={"tuner": "ecn"})
    with pytest.raises(InputError, match="none of its 1 trials is valid"):
        compare_runs([runs / "first", tmp_path / "bad"], Margins())
    (comparison,) = compare_runs([runs / "first", tmp_path / "mixed"], Margins())
    assert any("is invalid and excluded" in note for note in comparison.notes)
    assert [len(cell.pairs) for cell in comparison.cells] == [1]


def test_without_its_ports_flows_are_still_compared(run, one):
    damaged, original = one
    data = (damaged / "ports.parquet").read_bytes()
    (damaged / "ports.parquet").write_bytes(data[: len(data) // 2])
    result = run(original, damaged, "--json", "--no-html")
    assert result.exit_code == 1
    comparison, found = metrics(result)
    assert found["slowdown_mean_all"]["verdict"] == "equivalent"
    assert "queue_mean_bytes" not in found
    only = {item["metric"]: item["only_in"] for item in comparison["cells"][0]["not_compared"]}
    assert only["queue_mean_bytes"] == "A"
    assert any("ports.parquet" in note and "Parquet" in note for note in comparison["notes"])


def test_without_its_flows_ports_are_still_compared(run, one):
    damaged, original = one
    (damaged / "flows.parquet").unlink()
    comparison, found = metrics(run(original, damaged, "--json", "--no-html"))
    assert found["queue_mean_bytes"]["verdict"] == "equivalent"
    assert "slowdown_mean_all" not in found
    assert any("flows.parquet: the file is missing" in note for note in comparison["notes"])


@pytest.mark.parametrize(
    ("file", "column", "change", "said"),
    [
        ("flows", "fct_ns", lambda v: v // 1000, "fct_ns is not in nanoseconds"),
        ("flows", "fct_ns", lambda v: -v, "ends before it starts"),
        ("ports", "t_ns", lambda v: np.where(v == v.max(), 0, v), "its clock jumps"),
    ],
)
def test_foreign_units_and_clocks_that_jump_are_said(run, one, file, column, change, said):
    damaged, original = one

    def changed(table):
        place = table.column_names.index(column)
        values = change(table.column(column).to_numpy())
        return table.set_column(place, table.field(column), pa.array(values, type=pa.int64()))

    rewrite(damaged / f"{file}.parquet", changed)
    comparison, found = metrics(run(original, damaged, "--json", "--no-html"))
    assert any(said in note for note in comparison["notes"])
    left = "queue_mean_bytes" if file == "flows" else "slowdown_mean_all"
    assert found[left]["verdict"] == "equivalent"


def test_another_version_of_a_table_is_said(run, one):
    damaged, original = one
    path = damaged / "flows.parquet"
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"closloop.version": b"99"}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    comparison, _ = metrics(run(original, damaged, "--json", "--no-html"))
    assert any("has version 99 of the table" in note for note in comparison["notes"])


@pytest.mark.slow
def test_other_schedules_are_compared_as_distributions(cases, tmp_path):
    write(tmp_path / "a", cases("secn1", 1))
    write(tmp_path / "b", cases("secn1", 2), seed=1)
    (comparison,) = compare_runs([tmp_path / "a", tmp_path / "b"], Margins())
    keys = {item.metric.key for item in comparison.metrics}
    assert "slowdown_wasserstein" in keys
    assert "fct_ratio" not in keys
    assert any("distributions are compared" in note for note in comparison.notes)


def test_bad_input_is_refused_with_what_to_do(runs, tmp_path):
    for folders, said in (
        ([runs / "first"], "one run alone cannot be compared"),
        ([runs / "first", tmp_path / "none"], "there is no such folder"),
        ([runs / "first", tmp_path], "holds no finished trial"),
    ):
        with pytest.raises(InputError) as caught:
            compare_runs(folders, Margins())
        assert said in str(caught.value)
        assert "->" in str(caught.value)


def test_runs_without_a_common_cell_are_refused(cases, tmp_path):
    for name, tuner in (("a", "secn1"), ("b", "secn2")):
        for load in (0.3, 0.6):
            cell = {"tuner": tuner, "load": load, name: 1}
            write(tmp_path / name, cases(tuner, 1), cell=cell, tuner=TunerSpec(tuner))
    with pytest.raises(InputError, match="have no cell in common"):
        compare_runs([tmp_path / "a", tmp_path / "b"], Margins())


@pytest.mark.slow
def test_causes_name_what_differs_and_not_what_a_replay_only_calls_otherwise(cases, tmp_path):
    case = cases("secn1", 1)
    first = write(tmp_path / "a", case)
    flow = SingleFlowSpec("h0", "h1", 1_000, 0)
    replayed = {"traffic": (flow,), "tuner": TunerSpec("recorded"), "seed": 9}
    write(tmp_path / "b", case, parent=f"a/{first.name}", **replayed)
    slow = dataclasses.replace(case, testbed=dataclasses.replace(case.testbed, framing_bytes=0))
    write(tmp_path / "c", slow, host=HostSpec(min_rto_ns=5_000_000))

    def causes(name):
        (comparison,) = compare_runs([tmp_path / "a", tmp_path / name], Margins())
        return {cause.what: cause for cause in comparison.cells[0].causes}

    assert causes("b") == {}
    found = causes("c")
    assert list(found) == ["framing", "minimum RTO"]  # the fabric, then the hosts
    assert (found["framing"].a, found["framing"].b) == ("24 B", "0 B")
    assert "neither had a timeout" in found["minimum RTO"].why


@pytest.mark.slow
def test_what_an_import_does_not_count_is_compared_as_no_0(cases, tmp_path):
    def import_as(name, **changes):
        case = cases("secn1", 1)
        trial = dataclasses.replace(case.trial, backend="imported", **changes)
        ports = case.record.ports
        unknown = np.full_like(ports.tx_bytes, MISSING)
        counters = ("tx_bytes", "tx_packets", "marked_packets", "dropped_packets")
        ports = Samples(ports.t_ns, {**ports.values, **dict.fromkeys(counters, unknown)})
        samples = {**case.record.samples, "queue": ports}
        record = dataclasses.replace(case.record, samples=samples)
        said = Stamp(True, (Reason("imported", "warning", "by another program"),), ())
        place = tmp_path / name / trial.id
        write_trial(place, trial, case.testbed, case.schedule, record, said, {})

    import_as("a", traffic=())
    schedule = {"schedule": "12345678 and more"}
    import_as("b", traffic=(), files=schedule, action_period_ns=1_000_000)
    (comparison,) = compare_runs([tmp_path / "a", tmp_path / "b"], Margins())
    (cell,) = comparison.cells
    keys = {item.metric.key for item in cell.metrics}
    assert "queue_mean_bytes" in keys
    assert not keys & {"dropped_share", "marked_share", "utilisation_hosts"}
    assert [line.name for line in cell.subgroups.timelines] == ["queued_bytes"]
    # which flows were sent is known of both; how often a tuner acts of neither
    assert [(cause.what, cause.b) for cause in cell.causes] == [("traffic", "12345678")]
    write(tmp_path / "c", cases("secn1", 1), action_period_ns=1_000_000)
    (comparison,) = compare_runs([tmp_path / "a", tmp_path / "c"], Margins())
    causes = {cause.what for cause in comparison.cells[0].causes}
    assert "backend" in causes
    assert not causes & {"traffic", "finding: imported", "action period"}


def test_one_pair_of_a_few_flows_needs_repeats(cases, tmp_path):
    case = cases("secn1", 1, 30_000)
    write(tmp_path / "a", case)
    case.record.flows.end_ns[:] += 100_000
    write(tmp_path / "b", case)
    (comparison,) = compare_runs([tmp_path / "a", tmp_path / "b"], Margins())
    found = {item.metric.key: item for item in comparison.metrics}
    for key in ("slowdown_ks", "slowdown_wasserstein", "slowdown_mean_all"):
        assert np.isnan(found[key].interval.low)
        assert needs(found[key]) == "needs repeats"
