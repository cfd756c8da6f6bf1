"""What decides a run's results is carried over into its replay, chosen by the user, or refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.core.errors import InputError
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.core.parts import TrafficClass
from orchestration.core.pattern import DriverSpec
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import CLOSLOOP, HostSpec
from orchestration.exchange.hpcc_import import HpccFiles, import_hpcc
from orchestration.exchange.imported import write_imported
from orchestration.replay.build import build_replays
from orchestration.replay.request import ReplayRequest
from orchestration.results.reader import finished_trials, read_trial
from orchestration.results.stamp import Stamp
from orchestration.results.writer import write_trial
from tests.unit.conftest import Case
from traffic.schedule import class_names

TOPOLOGY = "3 1 2\n2\n0 2 25Gbps 1000ns 0.000000\n1 2 25Gbps 1000ns 0.000000\n"
FLOWS = "2\n0 1 3 100 48213 2.000000000\n0 1 3 100 1000 2.000500000\n"
FCT = (
    "0b000001 0b000101 10000 100 48213 2000000000 21877 19021\n"
    "0b000001 0b000101 10001 100 1000 2000500000 4877 4021\n"
)
CONFIG = (
    "PACKET_PAYLOAD_SIZE 1000\nBUFFER_SIZE 32\nKMAX_MAP 1 25000000000 400\n"
    "KMIN_MAP 1 25000000000 100\nPMAX_MAP 1 25000000000 0.2\n"
)
DCQCN = "CC_MODE 1\nRATE_AI 50Mb/s\nHAS_WIN 0\n"
FABRIC = ("shared-buffer", "pfc")


def imported(folder: Path, config: str | None, topology: str = TOPOLOGY) -> Path:
    """Import a run of that simulator with the lines of a config file, or without one."""
    texts = {"topology": topology, "flow": FLOWS, "fct": FCT}
    if config is not None:
        texts["config"] = CONFIG + config
    for role, text in texts.items():
        (folder / f"{role}.txt").write_text(text)
    files = HpccFiles(**{role: folder / f"{role}.txt" for role in texts})
    return write_imported(import_hpcc(files), folder / "runs" / "theirs", label="x").folder


def replay(run: Path, out: Path, **changes) -> tuple[Campaign, tuple[str, ...]]:
    (made,) = build_replays(ReplayRequest(run, **changes), out)
    return load_campaign(made.file), made.notes


def refused(run: Path, out: Path, **changes) -> str:
    """Return the one problem of a refused replay, which has written nothing."""
    with pytest.raises(InputError) as caught:
        build_replays(ReplayRequest(run, **changes), out)
    (problem,) = caught.value.problems
    assert problem.where == str(run)
    assert not list(out.glob("*.inputs"))
    return str(problem)


@pytest.mark.parametrize(
    ("config", "decides"),
    [
        (DCQCN, ["congestion control dcqcn with its parameters", "buffer of 32MiB", "PFC"]),
        ("CC_MODE 3\nHAS_WIN 1\n", ["congestion control hpcc", "a window of at most", "PFC"]),
        ("CC_MODE 7\nHAS_WIN 0\n", ["congestion control timely"]),
        ("CC_MODE 10\nHAS_WIN 0\n", ["congestion control hpcc-pint"]),
        ("CC_MODE 11\nHAS_WIN 0\n", ["congestion control cc-mode-11"]),
        ("CC_MODE 8\nHAS_WIN 1\n", ["a window of at most", "buffer of 32MiB", "PFC"]),
        (DCQCN + "LB_MODE 6\n", ["load balancing by LetFlow"]),
        (DCQCN + "ENABLE_IRN 1\n", ["IRN's loss recovery"]),
        (DCQCN + "ERROR_RATE_PER_LINK 0.01\n", ["random loss of up to 0.01"]),
        ("", ["its congestion control, which its files do not name", "buffer of 32MiB"]),
        (None, ["its congestion control, which its files do not name", "buffer of 16MiB", "PFC"]),
    ],
)
def test_an_imported_run_is_not_replayed_under_other_settings(tmp_path, config, decides):
    run = imported(tmp_path, config)
    told = refused(run, tmp_path, backend="emulated", tuners=("secn1",))
    for what in decides:
        assert what in told
    assert "--without shared-buffer" in told


def test_what_the_refusal_asks_for_is_enough(tmp_path):
    run = imported(tmp_path, DCQCN + "LB_MODE 3\nERROR_RATE_PER_LINK 0.01\n")
    told = refused(run, tmp_path, backend="emulated")
    words = told.split("choose them: ")[1].split(" (")[0].split()
    options = list(zip(words[::2], words[1::2], strict=True))
    without = tuple(value for option, value in options if option == "--without")
    assert without == ("shared-buffer", "pfc", "load-balancing", "link-loss")
    (control,) = (value for option, value in options if option == "--congestion-control")
    campaign, notes = replay(
        run, tmp_path, backend="emulated", congestion_control=control, without=without
    )
    (trial,) = campaign.trials
    assert (trial.host.congestion_control, trial.host.roce) == ("dctcp", None)
    # the simulator's switches mark what leaves
    assert (trial.fabric.kind, trial.fabric.marks) == ("closloop", "departures")
    told = "\n".join(notes)
    assert "in place of congestion control dcqcn with its parameters: dctcp with" in told
    assert "in place of PFC: " in told
    assert "in place of load balancing by CONGA: ECMP" in told


def test_each_choice_alone_leaves_the_others_refused(tmp_path):
    run = imported(tmp_path, DCQCN)
    told = refused(run, tmp_path, backend="emulated", congestion_control="dctcp")
    assert "dcqcn" not in told
    assert "PFC" in told
    told = refused(run, tmp_path, backend="emulated", without=FABRIC)
    assert "dcqcn" in told
    assert "PFC" not in told


def test_dctcp_without_a_window_needs_no_other_control(tmp_path):
    run = imported(tmp_path, "CC_MODE 8\nHAS_WIN 0\n")
    campaign, _ = replay(run, tmp_path, backend="emulated", without=FABRIC)
    assert campaign.trials[0].host.congestion_control == "dctcp"


def test_pfc_that_was_off_is_not_missed(tmp_path):
    run = imported(tmp_path, DCQCN + "ENABLE_PFC 0\n")
    told = refused(run, tmp_path, backend="emulated")
    assert "PFC" not in told
    with pytest.raises(InputError, match="--without pfc: the replay repeats it"):
        replay(run, tmp_path, backend="emulated", without=("pfc",))


def test_no_thresholds_are_replayed_of_switches_that_did_not_mark(tmp_path):
    run = imported(tmp_path, DCQCN + "ENABLE_QCN 0\n")
    assert not len(read_trial(run).table("actions")["t_ns"])


def test_a_fabric_of_the_users_own_stands_for_buffers_and_pfc(tmp_path):
    run = imported(tmp_path, DCQCN)
    # its hosts and links, with a shared buffer and PFC
    bed = tmp_path / "bed.yml"
    bed.write_text(
        "kind: custom\nname: theirs\nsource: theirs\nmtu: 1052B\nframing: 0B\n"
        "switch: {buffer: 32MiB, pfc: [0]}\nhosts: [host0, host1]\nswitches: [{name: switch2, "
        "tier: 1}]\nlinks:\n  - {a: host0, b: switch2, rate: 25Gbps, delay: 1us}\n"
        "  - {a: host1, b: switch2, rate: 25Gbps, delay: 1us}\n"
    )
    campaign, _ = replay(
        run, tmp_path, backend="emulated", testbed=str(bed), congestion_control="dcqcn"
    )
    (trial,) = campaign.trials
    assert trial.host.congestion_control == "dcqcn"
    # its packets are theirs: 1,000 B of payload
    assert trial.host.roce is not None
    assert trial.host.roce.payload_bytes == 1000


def test_a_folder_of_an_earlier_version_has_what_every_such_run_has(tmp_path):
    run = imported(tmp_path, "CC_MODE 8\nHAS_WIN 1\n")
    about = json.loads((run / "trial.json").read_text())
    del about["facts"]["imported"]["settings"]
    (run / "trial.json").write_text(json.dumps(about))
    told = refused(run, tmp_path, backend="emulated")
    assert "a window of a bandwidth-delay product" in told
    assert "buffer of 32MiB" in told
    assert "PFC" in told


def test_a_table_of_flows_has_no_congestion_control_to_replay(tmp_path):
    from orchestration.exchange.csv_flows import import_csv

    (tmp_path / "flows.csv").write_text("src,dst,size,at,took\nh1,h2,5,7,9\nh1,h2,5,907,9\n")
    (tmp_path / "map.yml").write_text(
        "testbed: graphcc\ncolumns: {src: src, dst: dst, bytes: {column: size, unit: KB}, "
        "start: {column: at, unit: us}, fct: {column: took, unit: us}}\n"
    )
    table = import_csv(tmp_path / "flows.csv", tmp_path / "map.yml")
    run = write_imported(table, tmp_path / "runs" / "mine", label="x").folder
    told = refused(run, tmp_path, backend="fluid", tuners=("secn1",))
    assert "its congestion control, which its files do not name" in told
    assert "dcqcn" not in told  # the fluid model has no RoCE
    replay(run, tmp_path, backend="fluid", tuners=("secn1",), congestion_control="dctcp")


def own(case: Case, folder: Path, **changes) -> Path:
    """Write a finished trial of closloop's own, with other settings."""
    trial = dataclasses.replace(case.trial, **changes)
    schedule = dataclasses.replace(case.schedule, classes=class_names(trial.traffic))
    run = folder / "runs" / trial.campaign / trial.id
    write_trial(run, trial, case.testbed, schedule, case.record, Stamp(True, (), ()), {})
    return run


ROCE = HostSpec("dcqcn", roce=RoceSpec())


def flows(case: Case, **changes):
    return tuple(dataclasses.replace(pattern, **changes) for pattern in case.trial.traffic)


def test_a_run_of_roce_is_not_replayed_as_tcp(case, tmp_path):
    run = own(case, tmp_path, backend="emulated", fabric=CLOSLOOP, host=ROCE)
    for backend in ("fluid", "hardware"):
        assert "congestion control dcqcn" in refused(run, tmp_path, backend=backend)
    for backend in ("emulated", "simulated"):
        campaign, _ = replay(run, tmp_path, backend=backend, name=backend)
        assert campaign.trials[0].host == ROCE
    campaign, notes = replay(run, tmp_path, backend="fluid", congestion_control="dctcp")
    assert campaign.trials[0].host.congestion_control == "dctcp"
    assert any("RoCE NICs: dctcp" in note for note in notes)


def test_roce_of_some_flows_alone_is_not_replayed_as_tcp_either(case, tmp_path):
    traffic = flows(case, congestion_control="dcqcn")
    host = HostSpec(roce=RoceSpec())
    run = own(case, tmp_path, backend="emulated", host=host, traffic=traffic)
    told = refused(run, tmp_path, backend="fluid")
    assert "congestion control dcqcn of the flows poisson:WebSearch/dcqcn" in told
    campaign, _ = replay(run, tmp_path, backend="fluid", congestion_control="dctcp")
    assert campaign.trials[0].host.congestion_control == "dctcp"
    assert campaign.trials[0].traffic[0].congestion_control == ""


def test_load_balancing_is_not_left_out_without_a_word(case, tmp_path):
    ways = LoadBalancingSpec(kind="flowlets", route_by="conga")
    run = own(case, tmp_path, load_balancing=ways)
    told = refused(run, tmp_path, backend="hardware")
    assert "load balancing by flowlets (conga)" in told
    _, notes = replay(run, tmp_path, backend="hardware", without=("load-balancing",))
    assert "in place of load balancing by flowlets (conga): ECMP" in notes


@pytest.mark.parametrize(
    ("driver", "decides"),
    [
        (DriverSpec("perftest", (("queue_pairs", 4),)), "perftest with queue_pairs 4"),
        (DriverSpec("scapy"), "scapy"),
        (DriverSpec("iperf3", (("rate", 10**9),)), "iperf3 with rate 1000000000"),
        (DriverSpec("iperf3", (("protocol", "udp"),)), "iperf3 with protocol udp"),
        (DriverSpec("iperf3", (("zerocopy", True),)), ""),
        (DriverSpec("fio", (("block", 65_536),)), ""),
    ],
)
def test_a_program_that_sends_otherwise_than_sockets_is_not_replaced(
    case, tmp_path, driver, decides
):
    run = own(case, tmp_path, backend="hardware", traffic=flows(case, driver=driver))
    if not decides:
        _, notes = replay(run, tmp_path, backend="emulated")
        assert f"sockets send what {driver.name} sent: poisson:WebSearch" in notes
        return
    told = refused(run, tmp_path, backend="emulated")
    assert f"{decides}, which sent the flows poisson:WebSearch" in told
    _, notes = replay(run, tmp_path, backend="emulated", without=("drivers",))
    assert any("sockets, without limits of rate" in note for note in notes)


def test_what_decides_nothing_is_a_note(case, tmp_path):
    run = own(case, tmp_path, backend="emulated", host=ROCE, flow_sample_period_ns=100_000, scale=1)
    _, notes = replay(run, tmp_path, backend="fluid", congestion_control="dctcp")
    assert "flows are not sampled on fluid" in notes
    run = own(case, tmp_path, backend="emulated", clock="real", scale=10)
    _, notes = replay(run, tmp_path, backend="fluid", name="unscaled")
    assert any("ran in real time" in note for note in notes)
    assert "the parent's rates were divided by 10; the replay's are not" in notes


def test_classes_with_a_control_of_their_own_take_the_one_that_is_named(case, tmp_path):
    classes = (TrafficClass("a", 1, "dcqcn"), TrafficClass("b", 1, "dcqcn"))
    bed = dataclasses.replace(case.testbed, classes=classes)
    trial = dataclasses.replace(
        case.trial, backend="emulated", fabric=CLOSLOOP, host=HostSpec(roce=RoceSpec())
    )
    run = tmp_path / "runs" / "c" / trial.id
    record = dataclasses.replace(case.record, samples={}, changes={})
    write_trial(run, trial, bed, case.schedule, record, Stamp(True, (), ()), {})
    campaign, _ = replay(
        run, tmp_path, backend="emulated", tuners=("secn1",), congestion_control="dctcp"
    )
    assert {pattern.congestion_control for pattern in campaign.trials[0].traffic} == {"dctcp"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"congestion_control": "dctpc"}, "--congestion-control: unknown: 'dctpc'"),
        ({"congestion_control": "program"}, "--congestion-control: unknown: 'program'"),
        ({"without": ("pcf",)}, "--without: unknown: 'pcf'"),
        ({"without": ("drivers",)}, "--without drivers: the replay repeats it"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(case, tmp_path, changes, told):
    run = own(case, tmp_path, backend="fluid")
    with pytest.raises(InputError) as caught:
        build_replays(ReplayRequest(run, **changes), tmp_path)
    assert told in str(caught.value)
    assert all(problem.remedy for problem in caught.value.problems)


def test_flows_of_a_file_take_the_control_that_is_named(tmp_path):
    file = tmp_path / "flows.csv"
    file.write_text("start_ns,src,dst,bytes,class\n0,h1,h2,1000,a\n")
    campaign, _ = replay(
        file, tmp_path, testbed="graphcc", tuners=("secn1",), congestion_control="hpcc"
    )
    assert campaign.trials[0].host.congestion_control == "hpcc"
    with pytest.raises(InputError, match="--without"):
        replay(file, tmp_path, testbed="graphcc", tuners=("secn1",), without=("pfc",))
    assert not finished_trials(tmp_path / "runs")
