"""The tuner that repeats recorded actions: when it acts, and what it refuses."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.model.errors import InputError
from orchestration.model.records import Observation, Setup
from orchestration.model.trial import TunerSpec
from tuners import registry
from tuners.recorded import read_actions

HEADER = "t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax"
TESTBED = load_testbed("rlcc-7")
SWITCH = TESTBED.switches[0]


def recorded(tmp_path, *rows: str) -> str:
    path = tmp_path / "actions.csv"
    path.write_text("\n".join([HEADER, *rows, ""]), encoding="utf-8")
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
    assert f"{path}:{line}" in fault


def test_thresholds_read_back_as_they_were_written(tmp_path):
    """The kernel has pmax as a share of 2^32: every bit of what it reports counts."""
    pmax = 0.009999999893433415
    path = recorded(tmp_path, f"0,{SWITCH},eth0,0,1,2,{pmax!r}")
    assert read_actions(path, TESTBED).change.pmax.tolist() == [pmax]
