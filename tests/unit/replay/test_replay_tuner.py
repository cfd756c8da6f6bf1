"""The tuner that repeats recorded actions: when it acts, and what it refuses."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.errors import InputError
from orchestration.core.knobs import DCQCN, KNOBS
from orchestration.core.records import Observation, Setup
from orchestration.core.trial import TunerSpec
from tuners import registry
from tuners.recorded import read_actions

HEADER = "t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax"
TIMEOUTS = "t_ns,device,timeout_ns"
TESTBED = load_testbed("rlcc-7")
SWITCH = TESTBED.switches[0]


def recorded(tmp_path, *rows: str, header: str = HEADER, name: str = "actions.csv") -> str:
    path = tmp_path / name
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return str(path)


def reading(t_ns: int) -> Observation:
    zeros = np.zeros(len(TESTBED.queues), dtype=np.int64)
    return Observation(t_ns, zeros, {"qlen_bytes": zeros})


def test_actions_come_at_the_first_reading_at_or_after_their_time(tmp_path):
    path = recorded(
        tmp_path,
        f"0,{SWITCH},eth0,0,1000,2000,0.5",
        f"100,{SWITCH},eth1,0,3000,4000,0.25",
        f"250,{SWITCH},eth1,0,5000,6000,1",
    )
    tuner = registry.create(TunerSpec("recorded", {"actions": path}))
    start = tuner.reset(TESTBED, 1)
    assert isinstance(start, Setup)
    (change,) = start.action
    assert change.knob == "ecn"
    assert (change.targets.tolist(), change.kmin_bytes.tolist()) == ([0], [1000])
    assert tuner.act(reading(99)) == ()
    (change,) = tuner.act(reading(100))
    assert (change.targets.tolist(), change.kmax_bytes.tolist()) == ([1], [4000])
    assert change.pmax.tolist() == [0.25]
    assert tuner.act(reading(200)) == ()
    (change,) = tuner.act(reading(300))
    assert change.kmin_bytes.tolist() == [5000]
    assert tuner.act(reading(400)) == ()
    assert tuner.facts() == {"recorded_changes": 3, "repeated_changes": 3}


def test_on_a_coarser_grid_the_last_setting_of_each_queue_counts(tmp_path):
    path = recorded(
        tmp_path,
        f"100,{SWITCH},eth2,0,1,2,0.5",
        f"100,{SWITCH},eth0,0,3,4,0.5",
        f"200,{SWITCH},eth2,0,5,6,0.5",
    )
    tuner = registry.create(TunerSpec("recorded", {"actions": path}))
    assert tuner.reset(TESTBED, 1) == Setup()
    (change,) = tuner.act(reading(1000))
    assert dict(zip(change.targets.tolist(), change.kmin_bytes.tolist(), strict=True)) == {
        2: 5,
        0: 3,
    }


def several(tmp_path) -> dict[str, str]:
    """Write actions of every knob, of DCQCN two parameters; return their files by parameter."""
    host = TESTBED.hosts[2]
    return {
        "actions": recorded(tmp_path, f"0,{SWITCH},eth0,0,1000,2000,0.5"),
        "actions_dcqcn": recorded(
            tmp_path, f"100,{host},40,2", f"300,{host},50,3", name="dcqcn.csv",
            header="t_ns,host,rpg_ai_rate,rpg_gd",
        ),
        "actions_flowlet_timeout": recorded(
            tmp_path, f"100,{SWITCH},30000", header=TIMEOUTS, name="timeouts.csv"
        ),
    }  # fmt: skip


def test_actions_of_several_knobs_come_together(tmp_path):
    params = several(tmp_path)
    assert (
        set(params)
        == {knob.table for knob in KNOBS.values()}
        == set(registry.parameters("recorded"))
    )
    tuner = registry.create(TunerSpec("recorded", params))
    assert set(tuner.knobs) == set(KNOBS)
    assert [change.knob for change in tuner.reset(TESTBED, 1).action] == ["ecn"]
    nics, timeouts = tuner.act(reading(100))
    assert (nics.knob, timeouts.knob) == ("dcqcn", "flowlet_timeout")
    assert {name: column.tolist() for name, column in nics.values.items()} == {
        "rpg_ai_rate": [40],
        "rpg_gd": [2],
    }
    assert (nics.targets.tolist(), timeouts.targets.tolist()) == ([2], [0])
    assert timeouts["timeout_ns"].tolist() == [30_000]
    DCQCN.bounds(TESTBED).check(nics)
    assert tuner.act(reading(200)) == ()
    assert [change.knob for change in tuner.act(reading(300))] == ["dcqcn"]
    assert tuner.facts() == {"recorded_changes": 4, "repeated_changes": 4}


def test_a_knob_without_actions_is_never_turned(tmp_path):
    path = recorded(tmp_path, header=TIMEOUTS)
    tuner = registry.create(TunerSpec("recorded", {"actions_flowlet_timeout": path}))
    assert tuner.knobs == ("flowlet_timeout",)
    assert tuner.reset(TESTBED, 1) == Setup()
    assert tuner.act(reading(100)) == ()


def test_one_file_a_knob_under_its_own_name(tmp_path):
    files = several(tmp_path)
    (fault,) = registry.check("recorded", {}, TESTBED)
    assert "needs 'actions'" in fault.in_one_sentence
    (fault,) = registry.check("recorded", {"actions_dcqcn": files["actions"]}, TESTBED)
    assert "has actions of ecn: write actions" in fault.in_one_sentence
    both = {"actions": files["actions_dcqcn"], "actions_dcqcn": files["actions_dcqcn"]}
    (fault,) = registry.check("recorded", both, TESTBED)
    assert "both have actions of dcqcn" in fault.in_one_sentence
    # `actions` alone may have any knob's
    assert registry.check("recorded", {"actions": files["actions_dcqcn"]}, TESTBED) == ()
    bad = recorded(tmp_path, "0,switch9,30000", header=TIMEOUTS, name="bad.csv")
    (fault,) = registry.check("recorded", {**files, "actions_flowlet_timeout": bad}, TESTBED)
    assert f"{bad}:2" in fault.in_one_sentence
    wrong = recorded(tmp_path, f"0,{SWITCH},3", header=TIMEOUTS, name="bad.csv")
    (fault,) = registry.check("recorded", {"actions_flowlet_timeout": wrong}, TESTBED)
    assert "timeout_ns is not 1000..1000000000" in fault.in_one_sentence


@pytest.mark.parametrize(
    ("rows", "line", "said"),
    [
        (["0,leaf7,eth0,0,1,2,0.5"], 2, "has no switch 'leaf7'"),
        (["0,{s},eth0,0,1,2,0.5", "0,{s},eth70,0,1,2,0.5"], 3, "no port 'eth70'"),
        (["0,{s},eth0,4,1,2,0.5"], 2, "no queue 4"),
        (["0,{s},eth0,-1,1,2,0.5"], 2, "no queue -1"),
        (["9,{s},eth0,0,1,2,0.5", "8,{s},eth0,0,1,2,0.5"], 3, "goes back in time"),
        (["0,{s},eth0,0,3,2,0.5"], 2, "kmin_bytes <= kmax_bytes"),
        (["0,{s},eth0,0,1,2,nan"], 2, "'nan', not a finite number"),
        (["0,{s},eth0,0,1,2,1.5"], 2, "not a probability"),
        (["0,{s},eth0,0,1.5,2,0.5"], 2, "not a whole number"),
    ],
)
def test_a_bad_recording_is_refused_with_its_line(tmp_path, rows, line, said):
    path = recorded(tmp_path, *(row.format(s=SWITCH) for row in rows))
    with pytest.raises(InputError) as caught:
        read_actions(path, TESTBED)
    (problem,) = caught.value.problems
    assert problem.where == f"{path}:{line}"
    assert said in problem.what
    assert problem.remedy
    (fault,) = registry.check("recorded", {"actions": path}, TESTBED)
    assert f"{path}:{line}" in fault.in_one_sentence


def test_thresholds_read_back_as_they_were_written(tmp_path):
    """The kernel has pmax as a share of 2^32: every bit of what it reports counts."""
    pmax = 0.009999999893433415
    path = recorded(tmp_path, f"0,{SWITCH},eth0,0,1,2,{pmax!r}")
    assert read_actions(path, TESTBED).change.pmax.tolist() == [pmax]
