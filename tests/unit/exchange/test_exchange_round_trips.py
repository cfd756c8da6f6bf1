"""Import, export, import again loses nothing."""

import dataclasses
import shutil
import tempfile
import zlib
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory import testbed_json
from orchestration.core.errors import InputError
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.exchange.csv_flows import export_csv, import_csv
from orchestration.exchange.hpcc_export import export_hpcc
from orchestration.exchange.hpcc_import import HpccFiles, import_hpcc
from orchestration.exchange.imported import write_imported
from orchestration.exchange.source import read_source
from orchestration.results.reader import read_trial
from orchestration.results.stamp import Stamp
from orchestration.results.writer import write_trial

TABLES = ("schedule", "flows", "actions")


@pytest.fixture
def place():
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


@st.composite
def hpcc_inputs(draw):
    """A topology of hosts on leaves on spines with ids shuffled, and its flows and results."""
    hosts, leaves, spines = (draw(st.integers(low, 4)) for low in (2, 1, 1))
    nodes = hosts + leaves + spines
    ids = draw(st.permutations(range(nodes)))
    host, leaf, spine = ids[:hosts], ids[hosts : hosts + leaves], ids[hosts + leaves :]
    cables = [(node, draw(st.sampled_from(leaf))) for node in host]
    cables += [(a, b) for a in leaf for b in spine]
    rates = st.sampled_from(["25Gbps", "40Gbps", "100Gbps", "2500Mbps", "1Mbps", "2500Kbps"])
    links = [
        f"{a} {b} {draw(rates)} {draw(st.integers(1, 10**6))}ns 0.000000\n"
        for a, b in draw(st.permutations(cables))
    ]
    topology = f"{nodes} {leaves + spines} {len(links)}\n"
    topology += " ".join(str(node) for node in sorted(leaf + spine)) + "\n" + "".join(links)
    count = draw(st.integers(1, 12))
    # few different values, so that flows tie
    starts = sorted(
        draw(
            st.lists(
                st.sampled_from([0, 1, 999, 10**9, 123_456_789]), min_size=count, max_size=count
            )
        )
    )
    rows = []
    for start in starts:
        src, dst = draw(st.permutations(sorted(host)))[:2]
        port = draw(st.sampled_from([100, 200, 101]))
        group = draw(st.sampled_from([3, 1]))
        size = draw(st.sampled_from([1, 1000, 2**32 - 1]))
        clock = start + 2 * 10**9
        rows.append(f"{src} {dst} {group} {port} {size} {clock // 10**9}.{clock % 10**9:09d}\n")
    config = "CC_MODE 1\nPACKET_PAYLOAD_SIZE 1000\nSIMULATOR_STOP_TIME 4.5\nBUFFER_SIZE 7\n"
    seen = sorted({line.split()[2] for line in links})
    bps = {
        "25Gbps": 25 * 10**9,
        "40Gbps": 40 * 10**9,
        "100Gbps": 100 * 10**9,
        "2500Mbps": 25 * 10**8,
        "1Mbps": 10**6,
        "2500Kbps": 25 * 10**5,
    }
    for key, value in (("KMIN_MAP", 5), ("KMAX_MAP", 80), ("PMAX_MAP", 0.125)):
        config += f"{key} {len(seen)} " + " ".join(f"{bps[r]} {value}" for r in seen) + "\n"
    return {
        "topology": topology,
        "flow": f"{count}\n" + "".join(rows),
        "config": config,
    }


def simulated(flow_file):
    """What a simulator could write for a flow file: every flow has a fate of its own."""
    of_pair, alike, ends = Counter(), Counter(), []
    lines = flow_file.read_text().splitlines()[1:]
    first = Decimal(lines[0].split()[-1])
    for line in lines:
        src, dst, _, port, size, start = line.split()
        after = int((Decimal(start) - first) * 10**9)
        fate = zlib.crc32(f"{src} {dst} {port} {size} {after} {alike[line]}".encode())
        if fate % 3:
            clock = int(Decimal(start) * 10**9)
            fct = fate % 10**6 + 1
            row = f"{src} {dst} {10000 + of_pair[src, dst]} {port} {size} {clock} {fct} {fct + 1}"
            ends.append((clock + fct, row))
        of_pair[src, dst] += 1
        alike[line] += 1
    return "".join(f"{row}\n" for _, row in sorted(ends))


def same(a, b, tables=TABLES, fields=("duration_ns", "drain_ns", "faults")):
    """The tables, fabric and settings of two trials are the same."""
    for name in tables:
        first, second = a.table(name), b.table(name)
        for column in first:
            np.testing.assert_array_equal(first[column], second[column], err_msg=f"{name} {column}")
    assert a.testbed.devices == b.testbed.devices
    assert a.testbed.ports == b.testbed.ports
    assert a.testbed.links == b.testbed.links
    assert (a.testbed.name, a.testbed.mtu_bytes) == (b.testbed.name, b.testbed.mtu_bytes)
    for name in fields:
        assert getattr(a.spec, name) == getattr(b.spec, name)


@pytest.mark.slow
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(texts=hpcc_inputs())
def test_hpcc_files_imported_exported_and_imported_again_are_the_same_run(texts):
    place = Path(tempfile.mkdtemp())
    try:
        paths = {}
        for role, text in texts.items():
            paths[role] = place / f"{role}.txt"
            paths[role].write_text(text)
        if ends := simulated(paths["flow"]):
            paths["fct"] = place / "fct.txt"
            paths["fct"].write_text(ends)
        first = write_imported(import_hpcc(HpccFiles(**paths)), place / "one", label="x")
        (item,) = read_source(first.folder)
        export_hpcc(item, place / "out")
        again = {
            role: place / "out" / name
            for role, name in (
                ("topology", "topology.txt"),
                ("flow", "flow.txt"),
                ("config", "config.txt"),
                ("names", "names.json"),
            )
        }
        if ends:
            again["fct"] = place / "out" / "fct.txt"
            again["fct"].write_text(simulated(again["flow"]))
        second = write_imported(import_hpcc(HpccFiles(**again)), place / "two", label="x")
        same(read_trial(first.folder), read_trial(second.folder))
        assert read_trial(second.folder).facts["congestion_control"] == "dcqcn"

        export_csv(item, place / "csv")
        table = import_csv(place / "csv" / "flows.csv", place / "csv" / "mapping.yml")
        third = write_imported(table, place / "three", label="x")
        same(
            read_trial(first.folder),
            read_trial(third.folder),
            ("schedule", "flows"),
            ("duration_ns",),
        )
    finally:
        shutil.rmtree(place)


@pytest.fixture
def trial(place, case):
    """A finished trial of closloop's own."""
    folder = place / "runs" / case.trial.id
    stamp = Stamp(True, (), ())
    write_trial(folder, case.trial, case.testbed, case.schedule, case.record, stamp, {})
    return folder


def test_a_trials_flows_come_home_from_the_simulator_with_their_numbers(trial, place):
    (item,) = read_source(trial)
    done = export_hpcc(item, place / "out")
    assert "here 90 B" in " ".join(done.notes)
    pfc = "the simulator's switches always have PFC; here they drop what does not fit"
    assert pfc in done.notes
    out = place / "out"
    files = HpccFiles(
        out / "topology.txt", out / "flow.txt", config=out / "config.txt", names=out / "names.json"
    )
    home = read_trial(write_imported(import_hpcc(files), place / "home", label="hpcc").folder)
    own = read_trial(trial)
    for column, values in own.table("schedule").items():
        np.testing.assert_array_equal(home.table("schedule")[column], values, err_msg=column)
    assert home.testbed.devices == own.testbed.devices
    assert (home.spec.parent, home.spec.seed, home.spec.repeat) == (
        own.spec.id,
        own.spec.seed,
        own.spec.repeat,
    )
    config = (out / "config.txt").read_text()
    assert "CC_MODE 8\n" in config
    first = own.table("actions")["kmin_bytes"][0] // 1000
    assert f"KMIN_MAP 2 25000000000 {first} 100000000000 {first}\n" in config


def test_a_trial_as_csv_keeps_all_of_its_flows(trial, place):
    (item,) = read_source(trial)
    export_csv(item, place / "csv")
    table = import_csv(place / "csv" / "flows.csv", place / "csv" / "mapping.yml")
    home = read_trial(write_imported(table, place / "home", label="csv").folder)
    own = read_trial(trial)
    assert testbed_json.testbed_to_json(home.testbed) == testbed_json.testbed_to_json(own.testbed)
    for name in ("end_ns", "fct_ns", "ideal_ns", "retransmits", "status"):
        np.testing.assert_array_equal(home.table("flows")[name], own.table("flows")[name])
    header = (place / "csv" / "schedule.csv").read_text().splitlines()[0]
    assert header == "start_ns,src,dst,bytes,class"


def test_the_exported_schedule_is_a_replays_file(trial, place):
    from traffic.patterns.replay import read_flows

    (item,) = read_source(trial)
    export_csv(item, place / "csv")
    flows = read_flows(str(place / "csv" / "schedule.csv"))
    np.testing.assert_array_equal(flows.start_ns, read_trial(trial).table("schedule")["start_ns"])


def changed(item, **fields):
    return dataclasses.replace(item, **fields)


def test_what_the_formats_cannot_hold_is_refused_and_leaves_nothing(trial, place):
    from orchestration.core.parts import LinkSpec, TrafficClass
    from orchestration.core.topology import Testbed
    from orchestration.core.trial import FaultSpec

    (item,) = read_source(trial)
    testbed, schedule, spec = item.testbed, item.schedule, item.spec
    large = dataclasses.replace(schedule, size_bytes=schedule.size_bytes + 2**32)
    classes = dataclasses.replace(testbed, classes=(TrafficClass("a", 1), TrafficClass("b", 1)))
    doubled = Testbed.build(
        "doubled",
        testbed.devices,
        [
            LinkSpec(
                testbed.ports[link.a].device,
                testbed.ports[link.b].device,
                link.rate_bps,
                link.delay_ns,
            )
            for link in (*testbed.links, testbed.links[-1])
        ],
        mtu_bytes=1500,
        buffer_bytes=10**6,
    )

    def fault(**about):
        specs = tuple(
            FaultSpec(**{"down_ns": 10**6, "up_ns": None, "convergence_ns": 0, **about})
            for _ in range(1)
        )
        return changed(item, spec=dataclasses.replace(spec, faults=specs))

    odd = dataclasses.replace(item.thresholds, kmin_bytes=item.thresholds.kmin_bytes + 1)
    uneven = dataclasses.replace(
        item.thresholds,
        kmax_bytes=item.thresholds.kmax_bytes + 1000 * np.arange(len(testbed.queues)),
    )
    host = dataclasses.replace(spec.host, congestion_control="bbr")
    cases = {
        "32 bits": changed(item, schedule=large),
        "traffic classes": changed(item, testbed=classes),
        "parallel links": changed(item, testbed=doubled),
        "takes one link down, once": fault(links=("leaf0-spine0",), up_ns=2 * 10**6),
        "whole microseconds": fault(links=("leaf0-spine0",), down_ns=1_500),
        "different thresholds": changed(item, thresholds=uneven),
        "whole KB": changed(item, thresholds=odd),
        "has no 'bbr'": changed(item, spec=dataclasses.replace(spec, host=host)),
    }
    for message, bad in cases.items():
        with pytest.raises(InputError, match=message) as caught:
            export_hpcc(bad, place / "out")
        assert caught.value.problems[0].remedy, message
    assert [path.name for path in place.iterdir()] == ["runs"]
    export_hpcc(changed(item, thresholds=odd), place / "out", thresholds=False)
    with pytest.raises(InputError, match="is there already"):
        export_hpcc(item, place / "out")


def test_a_link_that_fails_is_in_the_config(trial, place):
    from orchestration.core.trial import FaultSpec

    (item,) = read_source(trial)
    faults = (FaultSpec(1_500_000, None, 0, ("leaf0-spine0",)),)
    export_hpcc(changed(item, spec=dataclasses.replace(item.spec, faults=faults)), place / "out")
    ids = {device.name: n for n, device in enumerate(item.testbed.devices)}
    text = (place / "out" / "config.txt").read_text()
    # it counts from 2 s, flows from 2.097 s
    assert f"LINK_DOWN 98500 {ids['leaf0']} {ids['spine0']}\n" in text
    out = place / "out"
    files = HpccFiles(
        out / "topology.txt", out / "flow.txt", config=out / "config.txt", names=out / "names.json"
    )
    assert [fault.down_ns for fault in import_hpcc(files).faults] == [1_500_000]


def test_load_balancing_that_the_simulator_has_not_is_told(trial, place):
    (item,) = read_source(trial)
    spray = dataclasses.replace(item.spec, load_balancing=LoadBalancingSpec(kind="spray"))
    done = export_hpcc(changed(item, spec=spray), place / "out")
    assert "the simulator's switches do ECMP; here they do spray (random)" in done.notes


def test_a_campaign_file_is_exported_without_a_run(place):
    path = place / "campaign.yml"
    path.write_text(
        "campaign: c\ntestbed: graphcc\ntuners: [secn1, secn2]\nrepeats: 2\nduration: 1ms\n"
        "traffic: [{kind: poisson, workload: WebSearch, load: $load}]\n"
        "factors: {load: [0.3, 0.6]}\n"
    )
    items = read_source(path)
    assert sorted(item.name for item in items) == ["0.3-r1", "0.3-r2", "0.6-r1", "0.6-r2"]
    assert all(item.thresholds is None for item in items)
    done = export_hpcc(items[0], place / "out")
    assert any("run.py's for dctcp, 3KB" in note for note in done.notes)


def test_what_is_no_run_is_refused(place):
    with pytest.raises(InputError, match="is neither a trial's folder"):
        read_source(place)
