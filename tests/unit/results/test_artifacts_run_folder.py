import dataclasses
import errno
import json
import os

import numpy as np
import pytest

from orchestration.analysis.stamp import stamp
from orchestration.core import files
from orchestration.core.errors import InputError, TrialError
from orchestration.core.knobs import ECN
from orchestration.core.records import ChangeRecords, Samples
from orchestration.results import writer
from orchestration.results.reader import finished_trials, read_trial
from orchestration.results.stamp import Reason, Stamp
from orchestration.results.tables import OPTIONAL, TABLES
from orchestration.results.writer import write_trial

VALID = Stamp(True, (), ("flows",))


@pytest.fixture
def write(tmp_path, case):
    def write_case(record=case.record, verdict=VALID, **facts):
        folder = tmp_path / "runs" / case.trial.id
        write_trial(folder, case.trial, case.testbed, case.schedule, record, verdict, facts)
        return folder

    return write_case


def test_a_trial_is_read_back_as_it_was_written(write, case):
    verdict = Stamp(True, (Reason("drops", "warning", "3 packets were dropped"),), ("drops",))
    result = read_trial(write(verdict=verdict, wall_s=1.5))
    assert result.spec == case.trial
    assert result.stamp == verdict
    assert result.testbed == case.testbed
    assert result.facts == {**case.record.facts, "wall_s": 1.5}
    assert {"closloop", "python", "numpy", "pyarrow", "host_kernel"} <= set(result.versions)
    for name in ("t_ns", "qlen_bytes", "tx_bytes", "tx_packets", "marked_packets"):
        wanted, found = getattr(case.record.ports, name), getattr(result.ports, name)
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_schedule_and_flows_name_hosts_and_classes(write, case):
    result = read_trial(write())
    schedule, flows = result.table("schedule"), result.table("flows")
    assert schedule["src"][0] == case.testbed.hosts[case.schedule.src[0]]
    assert set(schedule["class"]) == {"poisson"}
    np.testing.assert_array_equal(schedule["bytes"], case.schedule.size_bytes)
    np.testing.assert_array_equal(flows["flow_id"], np.arange(len(case.schedule)))
    np.testing.assert_array_equal(
        flows["fct_ns"], case.record.flows.end_ns - case.schedule.start_ns
    )
    assert (flows["ideal_ns"] > 0).all()
    assert set(flows["status"]) == {"done"}


def test_a_flow_that_is_not_done_has_no_completion_time(write, case):
    status, end = case.record.flows.status.copy(), case.record.flows.end_ns.copy()
    status[2], end[2] = 1, -1
    flows = dataclasses.replace(case.record.flows, status=status, end_ns=end)
    table = read_trial(write(dataclasses.replace(case.record, flows=flows))).table("flows")
    assert table["status"][2] == "unfinished"
    assert table["end_ns"][2] == table["fct_ns"][2] == -1


def test_a_null_not_a_number_stands_for_a_missing_time(write, case):
    import pyarrow.parquet as pq

    status = case.record.flows.status.copy()
    status[:] = 2
    flows = dataclasses.replace(case.record.flows, status=status)
    folder = write(dataclasses.replace(case.record, flows=flows))
    assert pq.read_table(folder / "flows.parquet").column("fct_ns").null_count == len(status)


def test_actions_and_events_are_kept(write, case):
    result = read_trial(write())
    actions, events = result.table("actions"), result.table("events")
    assert len(actions["kmin_bytes"]) == len(case.testbed.queues)
    assert actions["device"][0] == case.testbed.queues[0].device
    assert list(events["detail"]) == ["traffic starts"]


def test_a_trial_with_nothing_in_it_can_be_read(write, case):
    none = np.zeros(0, np.int64)
    queues, hosts = len(case.testbed.queues), len(case.testbed.hosts)
    empty = dataclasses.replace(
        case.record,
        samples={
            "queue": Samples.of("queue", none, targets=queues),
            "host": Samples.of("host", none, targets=hosts),
        },
        changes={
            "ecn": ChangeRecords(none, none, none, none, ECN.named(none, none, none.astype(float)))
        },
        events=(),
    )
    result = read_trial(write(empty))
    assert result.ports.qlen_bytes.shape == (0, queues)
    assert all(
        len(result.table(name)[column]) == 0
        for name, column in (
            ("hosts", "host"),
            ("actions", "device"),
            ("events", "kind"),
            ("events", "detail"),
        )
    )


def test_two_writes_of_one_trial_are_byte_for_byte_equal(tmp_path, case):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        write_trial(folder, case.trial, case.testbed, case.schedule, case.record, VALID, {})
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name


def test_only_complete_folders_count_as_finished(write, tmp_path):
    folder = write()
    (folder.parent / f".other{files.PARTIAL_SUFFIX}").mkdir()
    (folder.parent / "notes").mkdir()
    assert finished_trials(folder.parent) == [folder]
    assert finished_trials(tmp_path / "nowhere") == []


def test_a_partial_folder_of_a_killed_run_is_replaced(write, case, tmp_path):
    left = tmp_path / "runs" / f".{case.trial.id}{files.PARTIAL_SUFFIX}"
    left.mkdir(parents=True)
    (left / "junk").write_text("x")
    folder = write()
    assert not (folder / "junk").exists()
    assert not left.exists()


def test_a_finished_trial_is_never_overwritten(write):
    about = write() / "trial.json"
    before = about.stat()
    with pytest.raises(TrialError, match="already holds a finished trial"):
        write()
    assert about.stat() == before


@pytest.mark.parametrize("failing", ["flows", "events"])
def test_no_space_leaves_nothing_behind(write, monkeypatch, tmp_path, failing):
    def full(path, name, columns):
        if name == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_bytes(b"x")

    monkeypatch.setattr(writer, "write_table", full)
    with pytest.raises(TrialError, match="No space left on device") as error:
        write()
    assert "make room" in error.value.remedy
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_interruption_leaves_nothing_behind(write, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "sync_path", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert list((tmp_path / "runs").iterdir()) == []


def damage(folder, kind, name):
    path = folder / name
    if kind == "missing":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(b'["something else"]' if name.endswith("json") else b"PAR1 nonsense PAR1")


def read_all(folder):
    result = read_trial(folder)
    assert result.testbed
    for name in TABLES:
        result.table(name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["missing", "truncated", "foreign"])
@pytest.mark.parametrize(
    "name",
    ["trial.json", "testbed.json", *(TABLES[name].file for name in sorted(set(TABLES) - OPTIONAL))],
)
def test_a_damaged_file_is_named(write, kind, name):
    folder = write()
    damage(folder, kind, name)
    with pytest.raises(InputError) as error:
        read_all(folder)
    assert error.value.problems[0].where == str(folder / name)
    assert error.value.problems[0].remedy


def test_a_flipped_bit_in_a_table_is_noticed(write):
    path = write() / "ports.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"ports\.parquet"):
        _ = read_trial(path.parent).ports


def test_a_table_of_another_testbed_is_refused(write):
    folder = write()
    data = json.loads((folder / "testbed.json").read_text())
    data["ports"]["rows"][1][2] = "swp1"
    (folder / "testbed.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="all sampled at the same times"):
        _ = read_trial(folder).ports


def test_a_trial_of_a_newer_closloop_is_refused(write):
    path = write() / "trial.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(InputError, match="format 99; this closloop reads formats up to 1"):
        read_trial(path.parent)


def test_trial_json_says_what_a_reviewer_asks(write, case):
    verdict = stamp(case.trial, case.testbed, case.schedule, case.record)
    about = json.loads((write(verdict=verdict) / "trial.json").read_text())
    assert about["id"] == case.trial.id
    assert about["seed"] == case.trial.seed
    assert about["stamp"]["valid"] is True
    assert about["facts"]["kernel"] == "7.3.0"
