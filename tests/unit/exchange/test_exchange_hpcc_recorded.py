"""What the real HPCC simulator, built unchanged, answered on an export; and exports that suit it.

`tests/golden/hpcc` is one of its runs: graphcc, WebSearch at 60 %, 20 ms, DCQCN with the thresholds
of SECN1. Its inputs are an earlier version's export, of a time when sizes were drawn independently;
times were moved by hand so that arrivals end at a dump, 2.1 s.
"""

import dataclasses
import json
import math
import shutil
from fractions import Fraction
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from typer.testing import CliRunner

import closloop
from orchestration.analysis.comparison.equivalence import Margins
from orchestration.analysis.comparison.result import compare_runs
from orchestration.analysis.summary import summarise
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.cli.main import app
from orchestration.core.errors import InputError
from orchestration.exchange.hpcc_config import control_of
from orchestration.exchange.hpcc_export import export_hpcc
from orchestration.exchange.hpcc_import import HpccFiles, import_hpcc
from orchestration.exchange.imported import write_imported
from orchestration.exchange.source import QueueThresholds, read_source
from orchestration.results.reader import finished_trials, read_trial
from orchestration.run.launcher import run_campaign

RECORDED = Path(__file__).parents[2] / "golden" / "hpcc"
BASE_NS, MS = 2_080_000_000, 1_000_000
CAMPAIGN = """\
campaign: peers
testbed: graphcc
backend: fluid
tuners: [secn1]
traffic:
  - {kind: poisson, workload: WebSearch, load: 0.6, draw: independent}
repeats: 1
seed: 90417
duration: 20ms
drain: 500ms
"""


@pytest.fixture
def take_over(tmp_path):
    """Import the recorded run, with files changed by a function of their text."""

    def run(label="theirs", out="runs", seed=None, base_ns=BASE_NS, **changes):
        folder = tmp_path / "files" / label / str(seed)
        shutil.copytree(RECORDED, folder)
        for role, change in changes.items():
            (path,) = folder.glob(f"{role}.*")
            path.write_text(change(path.read_text()))
        names = {"queues": "qlen.txt", "names": "names.json"}
        roles = ("topology", "flow", "fct", "queues", "config", "names")
        paths = {role: folder / names.get(role, f"{role}.txt") for role in roles}
        imported = import_hpcc(HpccFiles(**paths), base=f"{base_ns}ns")
        written = write_imported(imported, tmp_path / out, label=label, seed=seed)
        return read_trial(written.folder)

    return run


@pytest.fixture
def own(tmp_path):
    """The exported trial anew, from its campaign file, and that file."""
    path = tmp_path / "peers.yml"
    path.write_text(CAMPAIGN)
    (item,) = read_source(path)
    return item


def told(result, code):
    return [reason.text for reason in result.stamp.reasons if reason.code == code]


def config_of(item, folder, **options):
    """The lines of an export's config file by key, and the export."""
    done = export_hpcc(item, folder, **options)
    lines = (folder / "config.txt").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines), done


# Queues: those of arrivals, or of a time that is said


def report(folder):
    output = CliRunner().invoke(app, ["report", str(folder), "--no-html", "--full"]).output
    return " ".join(output.split())


def test_queues_are_those_of_the_time_when_flows_arrived(take_over, tmp_path):
    """Later dumps count on through the idle drain: 545 B came of 12.4 KB."""

    def drain(text):
        rows = [line.split() for line in text.splitlines()[1:]]
        idle = (" ".join([*row[:2], str(int(row[2]) + 4_000_000), *row[3:]]) for row in rows)
        return text + "time: 2500000000\n" + "".join(f"{line}\n" for line in idle)

    result = take_over(qlen=drain)
    (arm,) = summarise(tmp_path / "runs").conditions[0].arms
    assert arm.estimates["queue_mean_bytes"].mean == pytest.approx(12_409, abs=1)
    assert arm.estimates["queue_max_bytes"].mean == 598_000
    fact = result.facts["queue_histogram"]
    assert (fact["from_ns"], fact["until_ns"]) == (0, 20 * MS)
    assert "Over all switch ports, while flows arrived" in report(tmp_path / "runs")


def test_queues_of_another_time_are_not_called_those_of_arrivals(take_over, tmp_path):
    """An earlier export ended arrivals between dumps: the next one has idle time in it."""
    take_over(qlen=later)
    text = report(tmp_path / "runs")
    assert "Over all switch ports, while flows arrived" not in text
    assert "Queues of theirs: from 0ns to 120ms, where flows arrived until 19.97ms." in text


def later(text):
    """Only a dump that is 100 ms later, when the fabric has long been idle."""
    rows = [line.split() for line in text.splitlines()[1:]]
    idle = (" ".join([*row[:2], str(int(row[2]) + 1_000_000), *row[3:]]) for row in rows)
    return "time: 2200000000\n" + "".join(f"{line}\n" for line in idle)


def test_a_dump_before_any_flow_says_nothing_of_queues(take_over, tmp_path):
    rows = [f"{switch} {port} 1\n" for switch in range(24, 28) for port in range(1, 9)]
    result = take_over(qlen=lambda text: "time: 2000000000\n" + "".join(rows))
    assert "queue_histogram" not in result.facts
    assert "before flows began" in told(result, "queues-unknown")[0]
    (arm,) = summarise(tmp_path / "runs").conditions[0].arms
    assert math.isnan(arm.estimates["queue_mean_bytes"].mean)


@pytest.mark.parametrize("drain_ns", [0, 1, 3 * MS, 500 * MS])
@pytest.mark.parametrize("duration_ns", [MS, 20 * MS, 99_999_999, 100 * MS, 250 * MS + 7])
def test_arrivals_end_at_a_dump_whatever_they_last(own, tmp_path, duration_ns, drain_ns):
    spec = dataclasses.replace(own.spec, duration_ns=duration_ns, drain_ns=drain_ns)
    config, _ = config_of(dataclasses.replace(own, spec=spec), tmp_path / "out")
    begin, end = int(config["QLEN_MON_START"]), int(config["QLEN_MON_END"])
    assert end % 100_000_000 == 0  # it dumps there
    assert (end - begin) % 100 == 0  # it samples there
    assert 0 <= end - begin - duration_ns < 1_000
    assert float(config["SIMULATOR_STOP_TIME"]) * 1e9 > end
    names = json.loads((tmp_path / "out" / "names.json").read_text())
    assert (names["base_ns"], names["duration_ns"]) == (begin, duration_ns)
    first = (tmp_path / "out" / "flow.txt").read_text().splitlines()[1].split()[-1]
    assert int(float(first) * 1e9) == begin + own.schedule.start_ns[0]


def test_names_know_when_an_export_began(own, tmp_path):
    out = tmp_path / "out"
    export_hpcc(own, out)
    files = HpccFiles(
        out / "topology.txt", out / "flow.txt", config=out / "config.txt", names=out / "names.json"
    )
    imported = import_hpcc(files)
    np.testing.assert_array_equal(imported.flows.start_ns, own.schedule.start_ns)
    home = read_trial(write_imported(imported, tmp_path / "home", label="x").folder)
    assert home.spec.duration_ns == own.spec.duration_ns
    assert home.spec.drain_ns == own.spec.drain_ns
    names = json.loads((out / "names.json").read_text())
    (out / "names.json").write_text(json.dumps({**names, "format": 9}))
    with pytest.raises(InputError, match=r"names.json: has format 9"):
        import_hpcc(files)


# What is printed


def test_the_command_has_a_path_that_the_simulator_finds(tmp_path, monkeypatch):
    """With a config file that is not there it spins, and says nothing."""
    monkeypatch.chdir(tmp_path)
    Path("c.yml").write_text(CAMPAIGN.replace("repeats: 1", "repeats: 2"))
    done = CliRunner().invoke(app, ["export", "hpcc", "c.yml", "-o", "exported"])
    commands = [line for line in done.output.splitlines() if "scratch/third" in line]
    paths = [command.split("scratch/third ")[1].rstrip("'") for command in commands]
    assert paths == [str(tmp_path / "exported" / f"r{n}" / "config.txt") for n in (1, 2)]
    assert all(Path(path).is_file() for path in paths)


def test_a_path_with_a_blank_is_refused(own, tmp_path):
    with pytest.raises(InputError, match="blank") as caught:
        export_hpcc(own, tmp_path / "two words")
    assert "--prefix" in caught.value.problems[0].remedy
    assert not (tmp_path / "two words").exists()


# Starts


def as_it_reads(text):
    """What `Seconds(double)` makes of a start there: the double in ns, cut off."""
    return int(Fraction(float(text)) * 10**9)


def test_starts_are_exact_to_the_nanosecond(own, tmp_path):
    recorded = [line.split()[-1] for line in (RECORDED / "flow.txt").read_text().splitlines()[1:]]
    wanted = [int(Fraction(text) * 10**9) for text in recorded]
    answered = sorted(
        int(line.split()[5]) for line in (RECORDED / "fct.txt").read_text().splitlines()
    )
    # this is how it read the nine decimals of an earlier export
    assert sorted(map(as_it_reads, recorded)) == answered
    assert sum(a != b for a, b in zip(wanted, answered, strict=True)) == 243

    export_hpcc(own, tmp_path / "out")
    rows = (tmp_path / "out" / "flow.txt").read_text().splitlines()[1:]
    assert [as_it_reads(row.split()[-1]) for row in rows] == wanted


# Parameters

# What its run.py writes for --bw 25: mode, timers, gain, AI, HAI, DCTCP's AI, window, and
# FAST_REACT, INT_MULTI, ACK_HIGH_PRIO.
RUN_PY = {
    "dcqcn": "1 1 4 300 0.00390625 5Mb/s 50Mb/s 1000Mb/s 0 0 0 1 1",
    "dcqcn-paper": "1 50 50 55 0.00390625 5Mb/s 50Mb/s 1000Mb/s 0 0 0 1 1",
    "dcqcn-vwin": "1 1 4 300 0.00390625 5Mb/s 50Mb/s 1000Mb/s 1 1 0 1 0",
    "dcqcn-paper-vwin": "1 50 50 55 0.00390625 5Mb/s 50Mb/s 1000Mb/s 1 1 0 1 0",
    "hpcc": "3 1 4 300 0.00390625 10Mb/s 10Mb/s 1000Mb/s 1 1 1 1 0",
    "dctcp": "8 1 4 300 0.0625 10Mb/s 10Mb/s 615Mb/s 1 1 0 1 0",
    "timely": "7 1 4 300 0.00390625 25Mb/s 125Mb/s 1000Mb/s 0 0 0 1 1",
    "timely-vwin": "7 1 4 300 0.00390625 25Mb/s 125Mb/s 1000Mb/s 1 1 0 1 1",
    "hpcc-pint": "10 1 4 300 0.00390625 10Mb/s 10Mb/s 1000Mb/s 1 1 1 1 0",
}
KEYS = [
    "CC_MODE",
    "ALPHA_RESUME_INTERVAL",
    "RATE_DECREASE_INTERVAL",
    "RP_TIMER",
    "EWMA_GAIN",
    "RATE_AI",
    "RATE_HAI",
    "DCTCP_RATE_AI",
    "HAS_WIN",
    "VAR_WIN",
    "FAST_REACT",
    "INT_MULTI",
    "ACK_HIGH_PRIO",
]
ALWAYS = {
    "CLAMP_TARGET_RATE": "0",
    "FAST_RECOVERY_TIMES": "1",
    "MIN_RATE": "1000Mb/s",
    "L2_CHUNK_SIZE": "4000",
    "L2_ACK_INTERVAL": "1",
    "L2_BACK_TO_ZERO": "0",
    "GLOBAL_T": "1",
    "U_TARGET": "0.95",
    "MI_THRESH": "0",
    "MULTI_RATE": "0",
    "SAMPLE_FEEDBACK": "0",
    "PINT_LOG_BASE": "1.01",
    "PINT_PROB": "1.0",
    "RATE_BOUND": "1",
}


@pytest.mark.parametrize("control", RUN_PY)
def test_parameters_are_run_pys_and_the_export_says_so(own, tmp_path, control):
    config, done = config_of(own, tmp_path / "out", control=control)
    assert dict(zip(KEYS, RUN_PY[control].split(), strict=True)).items() <= config.items()
    assert ALWAYS.items() <= config.items()
    assert f"parameters are those of run.py for {control} at 25Gbps" in done.notes
    kmin, kmax = ("75", "75") if control == "dctcp" else ("100", "400")
    assert config["KMIN_MAP"].startswith(f"2 25000000000 {kmin} ")
    assert config["KMAX_MAP"].startswith(f"2 25000000000 {kmax} ")


def test_parameters_go_with_the_nics_rate():
    fast, slow = control_of("hpcc", 100 * 10**9).values, control_of("dcqcn", 10 * 10**9).values
    assert (fast["RATE_AI"], fast["INT_MULTI"]) == ("40Mb/s", "4")
    assert (slow["RATE_AI"], slow["RATE_HAI"]) == ("2Mb/s", "20Mb/s")


def test_other_parameters_are_said(own, tmp_path):
    wanted = {"RATE_AI": "50Mb/s", "HAS_WIN": "1"}
    config, done = config_of(own, tmp_path / "out", control="dcqcn", parameters=wanted)
    assert wanted.items() <= config.items()
    assert (
        "parameters are those of run.py for dcqcn at 25Gbps, except RATE_AI 50Mb/s (run.py: "
        "5Mb/s), HAS_WIN 1 (run.py: 0)"
    ) in done.notes
    for wrong in ({"RATE_A": "50Mb/s"}, {"RATE_AI": "50"}, {"HAS_WIN": "yes"}):
        with pytest.raises(InputError) as caught:
            export_hpcc(own, tmp_path / "no", control="dcqcn", parameters=wrong)
        assert caught.value.problems[0].where == "--set"


def test_an_import_shows_other_parameters_and_an_export_keeps_them(take_over, tmp_path):
    result = take_over()
    assert told(result, "parameters") == [
        "dcqcn at 25Gbps has other parameters: RATE_AI 50Mb/s (run.py: 5Mb/s), RATE_HAI 100Mb/s "
        "(run.py: 50Mb/s), MIN_RATE 100Mb/s (run.py: 1000Mb/s), ACK_HIGH_PRIO 0 (run.py: 1)"
    ]
    (item,) = read_source(result.folder)
    config, done = config_of(item, tmp_path / "out")
    before = dict(line.split(" ", 1) for line in (RECORDED / "config.txt").read_text().splitlines())
    assert all(config[key] == before[key] for key in (*KEYS, *ALWAYS))
    assert any("except RATE_AI 50Mb/s (run.py: 5Mb/s)" in note for note in done.notes)


def paper_timers(text):
    """The config of the recorded runs with DCQCN's paper's timers, which has run.py's values."""
    for old, new in (
        ("ALPHA_RESUME_INTERVAL 1", "ALPHA_RESUME_INTERVAL 50"),
        ("RATE_DECREASE_INTERVAL 4", "RATE_DECREASE_INTERVAL 50"),
        ("RP_TIMER 300", "RP_TIMER 55"),
        ("\nRATE_AI 50Mb/s", "\nRATE_AI 5Mb/s"),
        ("RATE_HAI 100Mb/s", "RATE_HAI 50Mb/s"),
        ("MIN_RATE 100Mb/s", "MIN_RATE 1000Mb/s"),
        ("ACK_HIGH_PRIO 0", "ACK_HIGH_PRIO 1"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def test_a_set_of_run_py_is_called_by_its_name(take_over):
    result = take_over(config=paper_timers)
    assert result.facts["congestion_control"] == "dcqcn-paper"
    assert not told(result, "parameters")


# DCTCP's window


def test_a_window_that_leaves_thresholds_no_effect_is_said(own, take_over, tmp_path):
    expected = "dctcp has a window of at most 28.6KB for each flow there (HAS_WIN 1), so that"
    _, done = config_of(own, tmp_path / "out")
    assert any(note.startswith(expected) for note in done.notes)
    without, done = config_of(own, tmp_path / "none", parameters={"HAS_WIN": "0"})
    assert without["HAS_WIN"] == "0"
    assert not any("window" in note for note in done.notes)

    def dctcp(text):
        return text.replace("CC_MODE 1", "CC_MODE 8").replace("HAS_WIN 0", "HAS_WIN 1")

    assert told(take_over(config=dctcp), "window")[0].startswith(expected)
    assert not told(take_over("other"), "window")


# Probabilities


def test_a_probability_is_written_as_it_was_set(own, tmp_path):
    """The kernel holds parts of 2**32, and read 1 % back as 0.009999999893433415."""
    count = len(own.testbed.queues)
    kmin, kmax = np.full(count, 5_000), np.full(count, 200_000)
    for read, written in ((0.009999999893433415, "0.01"), (0.123456789, "0.123456789"), (1.0, "1")):
        marks = QueueThresholds(kmin, kmax, np.full(count, read), changed=False)
        item = dataclasses.replace(own, thresholds=marks)
        config, _ = config_of(item, tmp_path / written)
        assert config["PMAX_MAP"] == f"2 25000000000 {written} 100000000000 {written}"


# Comparing


@pytest.fixture
def fluid(own, tmp_path):
    run_campaign(
        load_campaign(tmp_path / "peers.yml"), FluidBackend(), tmp_path / "fluid", 1, MagicMock()
    )
    (folder,) = finished_trials(tmp_path / "fluid" / "peers")
    return folder


@pytest.mark.slow
def test_both_sides_have_one_ideal_time(fluid, take_over):
    theirs, ours = take_over(), read_trial(fluid)
    (comparison,) = compare_runs([fluid, theirs.folder], Margins())
    ideal, fct = ours.table("flows")["ideal_ns"], theirs.table("flows")["fct_ns"]
    mean = next(item for item in comparison.metrics if item.metric.key == "slowdown_mean_all")
    assert mean.b == pytest.approx(float((fct / ideal).mean()))
    assert mean.b > float((fct / theirs.table("flows")["ideal_ns"]).mean()) * 1.03
    said = "slowdowns of both runs use the ideal FCTs of A; those that B brought are up to "
    assert [note for note in comparison.notes if note.startswith(said)]
    # whichever is named first: those that closloop worked out count
    (other,) = compare_runs([theirs.folder, fluid], Margins())
    again = next(item for item in other.metrics if item.metric.key == "slowdown_mean_all")
    assert again.a == pytest.approx(mean.b)


@pytest.mark.slow
def test_histograms_are_compared_with_samples(fluid, take_over):
    theirs = take_over()
    (comparison,) = compare_runs([fluid, theirs.folder], Margins())
    judged = {item.metric.key: item for item in comparison.metrics}
    assert judged["queue_mean_bytes"].b == pytest.approx(12_409, abs=1)
    assert "queue_wasserstein_bytes" in judged
    lacking = {metric.key for metric, _ in comparison.cells[0].not_compared}
    assert "marked_share" in lacking
    assert not lacking & {"queue_mean_bytes", "queue_p99_bytes", "queue_wasserstein_bytes"}


@pytest.mark.slow
def test_queues_of_different_times_are_not_compared(fluid, take_over):
    theirs = take_over(qlen=later)
    (comparison,) = compare_runs([fluid, theirs.folder], Margins())
    assert "queue_mean_bytes" not in {item.metric.key for item in comparison.metrics}
    assert any("of another time (from 0ns to 120ms" in note for note in comparison.notes)


def test_what_all_trials_lack_is_said_once(take_over, tmp_path):
    for seed in (1, 2, 3):
        take_over("a", "first", seed)
        take_over("b", "other", seed)
    (comparison,) = compare_runs([tmp_path / "first", tmp_path / "other"], Margins())
    lack = [note for note in comparison.notes if "sampled over time" in note]
    assert [note[0] for note in lack] == ["A", "B"]
    judged = {item.metric.key: item for item in comparison.metrics}
    assert judged["queue_mean_bytes"].verdict == "equivalent"
    assert judged["queue_wasserstein_bytes"].verdict == "equivalent"


OURS = """\
campaign: ours
testbed: graphcc
fabric: {kind: closloop, marks: departures}
host: {congestion_control: dcqcn, roce: {payload: 1448B, ack_every: 1, dcqcn: {set: hpcc-0.2}}}
tuners: [secn1]
traffic: [{kind: replay, file: flows.csv}]
repeats: 4
duration: 20ms
drain: 500ms
"""


@pytest.mark.slow
def test_the_packet_engine_agrees_with_it_under_dcqcn(take_over, tmp_path):
    """Its one draw of marks and paths against four of ours, as fidelity.md has it."""
    theirs = take_over()
    schedule = theirs.table("schedule")
    columns = [schedule[name] for name in ("start_ns", "src", "dst", "bytes", "class")]
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    (tmp_path / "flows.csv").write_text("\n".join(["start_ns,src,dst,bytes,class", *rows, ""]))
    (tmp_path / "ours.yml").write_text(OURS)
    closloop.run(tmp_path / "ours.yml", out=tmp_path, jobs=1)
    ratios = {"slowdown_mean_all": [], "fct_mean_ns_all": [], "queue_mean_bytes": []}
    for folder in finished_trials(tmp_path / "ours"):
        (comparison,) = compare_runs([folder, theirs.folder], Margins())
        judged = {item.metric.key: item for item in comparison.metrics}
        for key, values in ratios.items():
            values.append(judged[key].a / judged[key].b)
    assert {key: np.mean(values) for key, values in ratios.items()} == {
        "slowdown_mean_all": pytest.approx(1.02, abs=0.02),
        "fct_mean_ns_all": pytest.approx(1.04, abs=0.02),
        "queue_mean_bytes": pytest.approx(1.05, abs=0.06),
    }
