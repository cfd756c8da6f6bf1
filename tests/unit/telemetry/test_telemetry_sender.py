"""The server ends up with what the archive has, count by count, whatever happened on the way."""

import dataclasses
import importlib.util
import json
import shutil
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from collectors.recorder import Recorder
from collectors.sinks.influx import Answer
from collectors.sinks.lines import MEASUREMENTS, run_tag
from collectors.sinks.spool_observer import SpoolNote, spool_observers, started_ns, write_spool_note
from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.ports import TrialRun
from orchestration.core.records import (
    FlowRecords,
    HostReading,
    Observation,
    Samples,
    Schedule,
    TrialRecord,
)
from orchestration.core.signals import names, recorded, targets
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.results.reader import finished_trials, read_trial
from orchestration.results.stamp import Stamp
from orchestration.results.writer import write_trial
from orchestration.telemetry.delivery import Delivery, GaveUp, Refused
from orchestration.telemetry.sender import Sender
from tests.testbeds import single_switch
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule

_SPEC = importlib.util.spec_from_file_location(
    "telemetry_store", Path(__file__).parents[1] / "telemetry_store.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules["telemetry_store"] = _MODULE
_SPEC.loader.exec_module(_MODULE)
Store = _MODULE.Store

SPOOL = 50_000_000
START_NS = 1_795_287_252_123_456_789


def run_fake(campaign: Path, seed: int, limit=SPOOL, *, live=True, archive=True):
    """Run a trial on the fluid model as a worker does."""
    testbed = load_testbed("rlcc-7")
    trial = TrialSpec(
        campaign="tele", testbed="rlcc-7", backend="fluid", tuner=TunerSpec("amt"),
        traffic=(PoissonSpec("WebSearch", 0.5, 0, 2_000_000),), seed=seed, repeat=seed,
        duration_ns=2_000_000, drain_ns=50_000_000,
    )  # fmt: skip
    schedule = make_schedule(trial, testbed)
    work = campaign / f".{trial.id}.work"
    work.mkdir(parents=True)
    if live:
        note = SpoolNote(str(campaign / ".telemetry" / "home"), limit, "tele", trial.id)
        write_spool_note(work, note)
    record = FluidBackend().run(TrialRun(trial, testbed, schedule, work))
    if archive:
        facts = {"wall_s": 1.0, "started_ns": started_ns(work, START_NS + seed)}
        verdict = stamp(trial, testbed, schedule, record)
        write_trial(campaign / trial.id, trial, testbed, schedule, record, verdict, facts)
    shutil.rmtree(work)
    return trial


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def campaign(tmp_path):
    return tmp_path / "tele"


def sending(campaign, store, patient=lambda: True):
    said = []
    say = lambda one: said.append((one.text, one.remedy))  # noqa: E731
    delivery = Delivery(store, patient, say, sleep=lambda seconds: None)
    return Sender(campaign, campaign / ".telemetry" / "home", delivery, say), said


def send_all(campaign, store):
    sender, said = sending(campaign, store)
    with closing(sender):
        while sender.send_available():
            pass
        assert not sender.unsent()
    return said


def agree(campaign, store):
    """Compare every field's count and sum with the archive's tables."""
    for folder in finished_trials(campaign):
        trial = read_trial(folder)
        tags = {"trial": trial.spec.id, "run": run_tag(int(trial.facts["started_ns"]))}
        for measurement in MEASUREMENTS.values():
            if not measurement.table:
                continue
            points = store.of(measurement.name, **tags)
            table = dict(trial.table(measurement.table))
            if measurement.table == "flows":
                table |= {n: trial.table("schedule")[n] for n in ("src", "dst", "bytes", "class")}
            assert len(points) == len(next(iter(table.values())))
            for name in (*measurement.tags, *measurement.fields):
                if name == "row":
                    continue
                theirs = sorted(point[name] for point in points if name in point)
                values = table[name]
                if measurement.fields.get(name) == "int?":
                    values = values[values != -1]
                shown = repr if measurement.fields.get(name) == "float" else str
                assert theirs == sorted(shown(value) for value in values.tolist()), name
        assert len(store.of("closloop_trial", **tags)) == 1


@pytest.mark.slow
def test_what_was_sent_live_is_what_the_archive_has(campaign, store):
    for seed in (1, 2):
        run_fake(campaign, seed)
        send_all(campaign, store)
    agree(campaign, store)
    # Nothing came twice: readings and changes went live, and not again from the archive.
    assert store.lines == len(store.points)


def test_an_archive_alone_gives_the_same_points_as_a_live_run(campaign, store):
    trial = run_fake(campaign, 1)
    send_all(campaign, store)
    from_archive = Store()
    shutil.rmtree(campaign / ".telemetry")
    send_all(campaign, from_archive)
    assert from_archive.points == store.points
    assert store.of("closloop_action", trial=trial.id)


LOSSLESS = single_switch("one", 3, "25Gbps", switch="{buffer: 1MB, pfc: [3]}")


def test_pauses_buffers_and_hosts_are_sent_while_the_trial_runs(campaign, store, tmp_path):
    (tmp_path / "one.yml").write_text(LOSSLESS)
    testbed = load_testbed(str(tmp_path / "one.yml"))
    trial = TrialSpec("tele", "one", "fluid", TunerSpec("secn1"), (), 1, 1, 10**9, 0)
    work = campaign / ".work"
    work.mkdir(parents=True)
    home = campaign / ".telemetry" / "home"
    write_spool_note(work, SpoolNote(str(home), SPOOL, "tele", trial.id))
    read = []
    recorder = Recorder(testbed)
    live = spool_observers(work, testbed, recorder, lambda: read[-1] if read else None)
    kept = {scope: targets(testbed, scope) for scope in ("queue", "priority", "switch")}
    for tick in range(1, 8):
        if tick % 3 == 0:  # hosts are read less often
            read.append(HostReading(tick, {name: np.arange(3) + tick for name in names("host")}))
        values = {
            signal.key: np.arange(len(kept[scope])) + 100 * tick + place
            for scope in kept
            for place, signal in enumerate(recorded(scope))
        }
        observation = Observation(tick, np.zeros(3, dtype=np.int64), values)
        for observer in (recorder, *live):
            observer.observed(observation)
    live[0].close()
    sender, _ = sending(campaign, store)
    with closing(sender):
        sender.send_spooled()
    assert [len(store.of(f"closloop_{name}")) for name in ("pause", "switch", "host")] == [21, 7, 6]
    hosts = Samples(
        np.array([one.t_ns for one in read]),
        {name: np.stack([one.values[name] for one in read]) for name in names("host")},
    )
    none = np.zeros(0, dtype=np.int64)
    record = TrialRecord(
        FlowRecords(none, none, none, none),
        {**recorder.samples(), "host": hosts},
        recorder.changes(),
        (),
    )
    schedule = Schedule(none, none, none, none, none, ())
    facts = {"started_ns": started_ns(work, 0)}
    verdict = Stamp(True, (), ())
    write_trial(campaign / trial.id, trial, testbed, schedule, record, verdict, facts)
    shutil.rmtree(work)
    send_all(campaign, store)
    agree(campaign, store)
    assert store.lines == len(store.points)


@pytest.mark.parametrize("limit", [0, 1_100_000])
def test_what_the_spool_did_not_take_comes_from_the_archive(campaign, store, limit, monkeypatch):
    monkeypatch.setattr("collectors.sinks.spool._CHECK_EVERY_BYTES", 1_000)
    if limit:  # another trial has filled nearly all of it
        other = campaign / ".telemetry" / "home" / "a.run"
        other.mkdir(parents=True)
        (other / "00000000.part").write_bytes(bytes(limit - 5_000))
    run_fake(campaign, 1, limit)
    if limit:
        shutil.rmtree(other)
    said = send_all(campaign, store)
    agree(campaign, store)
    if limit:
        [(text, remedy)] = said
        assert "sent from the archive" in text
        assert "CLOSLOOP_INFLUX_SPOOL" in remedy


def test_a_damaged_spool_is_said_once_and_the_archive_is_sent(campaign, store):
    run_fake(campaign, 1)
    part = next(campaign.glob(".telemetry/home/*/*.part"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 255
    part.write_bytes(data)
    said = send_all(campaign, store)
    agree(campaign, store)
    assert [text.split(":")[0] for text, _ in said] == ["the spool is damaged"]


def test_a_run_of_a_trial_that_failed_is_told_from_the_one_that_was_archived(campaign, store):
    trial = run_fake(campaign, 1, archive=False)
    send_all(campaign, store)
    failed = store.of("closloop_port", trial=trial.id)
    assert failed
    run_fake(campaign, 1)
    send_all(campaign, store)
    agree(campaign, store)
    assert len({point["run"] for point in store.of("closloop_port", trial=trial.id)}) == 2


@pytest.mark.slow
def test_a_sender_that_is_ended_anywhere_goes_on_where_it_was(campaign, store):
    run_fake(campaign, 1)
    run_fake(campaign, 2, live=False)
    ends = 0
    while True:
        tries = iter([True, True, False])
        # The first request of each life arrives, then patience ends.
        sender, _ = sending(campaign, store, lambda tries=tries: next(tries, False))
        with closing(sender):
            try:
                while sender.send_available():
                    pass
                break
            except GaveUp:
                ends += 1
        assert ends < 1000
    assert ends > 3
    agree(campaign, store)
    assert store.lines == len(store.points)


def test_a_ledger_that_a_kill_has_torn_costs_a_repetition_and_no_point(campaign, store):
    run_fake(campaign, 1)
    send_all(campaign, store)
    points = dict(store.points)
    [ledger] = campaign.glob(".telemetry/home/sent.jsonl")
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:7])
    send_all(campaign, store)
    assert store.points == points


def test_a_ledger_of_0_2_says_which_trials_were_sent(campaign, store):
    done, begun = (run_fake(campaign, seed, live=False) for seed in (1, 2))
    tags = [
        run_tag(int(read_trial(campaign / one.id).facts["started_ns"])) for one in (done, begun)
    ]
    home = campaign / ".telemetry" / "home"
    home.mkdir(parents=True)
    lines = [
        [done.id, tags[0], 3, 917, {"ports": 20}, 4, True, "trial", 1, True],
        [begun.id, tags[1], 0, 0, {"ports": 20}, 0, True, "ports", 5000, False],
    ]
    (home / "sent.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    send_all(campaign, store)
    assert [point["repeat"] for point in store.of("closloop_trial")] == ["2"]
    assert len(store.of("closloop_port")) == len(
        read_trial(campaign / begun.id).table("ports")["t_ns"]
    )


@pytest.mark.slow
def test_troubles_in_the_midst_lose_nothing(campaign, store):
    run_fake(campaign, 1)
    later = Answer("later", "is in trouble (500)", "see its log")
    store.answers = [Answer("ok"), later, later, Answer("too-large"), Answer("ok"), later]
    said = send_all(campaign, store)
    agree(campaign, store)
    assert said == [("is in trouble (500)", "see its log")] * 2


def test_a_refusal_leaves_everything_to_be_sent_later(campaign, store):
    run_fake(campaign, 1)
    store.answers = [Answer("refused", "does not accept the token (401)", "set it")]
    sender, said = sending(campaign, store)
    with closing(sender), pytest.raises(Refused) as refused:
        sender.send_available()
    answer = refused.value.answer
    assert (answer.text, answer.remedy, said) == ("does not accept the token (401)", "set it", [])
    send_all(campaign, store)
    agree(campaign, store)


@pytest.mark.parametrize("what", ["flows.parquet", "trial.json", "testbed.json"])
def test_a_damaged_run_folder_is_said_once_and_the_others_are_sent(campaign, store, what):
    broken = run_fake(campaign, 1, live=False)
    run_fake(campaign, 2, live=False)
    path = campaign / broken.id / what
    path.write_bytes(path.read_bytes()[:-20] + b"tampered with, so it is")
    sender, said = sending(campaign, store)
    with closing(sender):
        for _ in range(3):
            sender.send_available()
        assert sender.damaged == {broken.id}
    assert len(said) == 1
    assert what in said[0][0]
    assert said[0][1]
    assert [point["repeat"] for point in store.of("closloop_trial")] == ["2"]


def test_a_run_folder_without_a_start_takes_the_journals(campaign, store):
    trial = run_fake(campaign, 1, live=False)
    path = campaign / trial.id / "trial.json"
    about = json.loads(path.read_text())
    del about["facts"]["started_ns"]
    path.write_text(json.dumps(about))
    sender, said = sending(campaign, store)
    with closing(sender):
        sender.send_available()
    assert "the time at which it ran" in said[0][0]
    entry = {"at": "2026-11-21T18:54:12.426+00:00", "event": "trial-started", "trial": trial.id}
    (campaign / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    send_all(campaign, store)
    [point] = store.of("closloop_trial")
    assert point["_time"] == "1795287252426000000"


def test_a_clock_that_was_set_back_is_said_once(campaign, store, monkeypatch):
    run_fake(campaign, 1, live=False)
    run_fake(campaign, 2, live=False)
    monkeypatch.setattr("orchestration.telemetry.sender.time.time_ns", lambda: START_NS - 10**12)
    said = send_all(campaign, store)
    assert len(said) == 1
    assert "set back by 1000 s" in said[0][0]
    agree(campaign, store)


def test_a_trial_clock_that_jumps_back_loses_no_reading(tmp_path, case):
    work = tmp_path / "work"
    work.mkdir()
    write_spool_note(work, SpoolNote(str(tmp_path / "spool"), SPOOL, "c", "t"))
    recorder = Recorder(case.testbed)
    [observer] = spool_observers(work, case.testbed, recorder)
    queues = len(case.testbed.queues)
    columns = dict.fromkeys(
        ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets"),
        np.arange(queues),
    )
    reading = make_observation(queues, columns)
    for t_ns in (100, 200, 50, 200, 300):
        for one in (recorder, observer):
            one.observed(dataclasses.replace(reading, t_ns=t_ns))
    observer.close()
    store = Store()
    delivery = Delivery(store, lambda: True, lambda *words: None)
    with closing(Sender(tmp_path, tmp_path / "spool", delivery, lambda *_: None)) as sender:
        sender.send_available()
    points = store.of("closloop_port", device=case.testbed.queues[0].device, port="eth0")
    assert [point["t_ns"] for point in points] == ["100", "200", "50", "200", "300"]


def make_observation(queues, columns):
    from orchestration.core.records import Observation

    return Observation(t_ns=0, age_ns=np.zeros(queues, np.int64), values=columns)


def test_only_one_sender_has_a_campaign(campaign, store):
    run_fake(campaign, 1)
    sender, _ = sending(campaign, store)
    with closing(sender), pytest.raises(NotReadyError, match="being sent by another"):
        sending(campaign, store)
    send_all(campaign, store)


def test_a_full_disk_costs_the_live_records_and_not_the_trial(campaign, store, monkeypatch):
    import collectors.sinks.spool as spool

    real, calls = spool.os.write, []

    def write(handle, data):
        calls.append(handle)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return real(handle, data)

    monkeypatch.setattr(spool.os, "write", write)
    testbed = load_testbed("rlcc-7")
    note = SpoolNote(str(campaign / ".telemetry" / "home"), SPOOL, "tele", "t")
    work = campaign / "w"
    work.mkdir(parents=True)
    write_spool_note(work, note)
    recorder = Recorder(testbed)
    [observer] = spool_observers(work, testbed, recorder)
    queues = len(testbed.queues)
    columns = dict.fromkeys(
        ("qlen_bytes", "tx_bytes", "tx_packets", "marked_packets", "dropped_packets"),
        np.arange(queues),
    )
    for t_ns in range(0, 100_000, 100):
        for one in (recorder, observer):
            one.observed(dataclasses.replace(make_observation(queues, columns), t_ns=t_ns))
    # After the first refusal nothing more is tried.
    assert len(calls) == 4
    with pytest.raises(InputError):
        read_trial(campaign / "t")
