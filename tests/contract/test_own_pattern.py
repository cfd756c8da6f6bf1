"""A traffic pattern of one's own: the example, in a file and offered by a package."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import closloop
from inventory.files import load_testbed
from orchestration.campaign.bounds import read_bounds
from orchestration.campaign.expand import load_campaign
from orchestration.core import pattern, plugins
from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec
from orchestration.results.reader import finished_trials, read_trial
from traffic.schedule import make_schedule

RING = (Path(__file__).parents[2] / "examples" / "ring.py").read_text(encoding="utf-8")
CAMPAIGN = """\
campaign: ring
testbed: graphcc
backend: fluid
tuners: [secn1]
traffic:
  - {{kind: {kind}, size: 64KB, period: 1ms{more}}}
  - {{kind: poisson, workload: WebSearch, load: 0.1}}
duration: 3ms
repeats: 2
"""


def run(file, out):
    return closloop.run(file, out=out, jobs=1)


def write(folder, kind="ring.py:Ring", more=""):
    (folder / "ring.py").write_text(RING)
    file = folder / "campaign.yml"
    file.write_text(CAMPAIGN.format(kind=kind, more=more))
    return file


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Offer the pattern as an installed package does."""
    (tmp_path / "ring_of_a_package.py").write_text(RING)
    monkeypatch.syspath_prepend(str(tmp_path))
    about = tmp_path / "ring-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: ring\nVersion: 1.0\n")
    points = "[closloop.patterns]\nring = ring_of_a_package:Ring\n"
    (about / "entry_points.txt").write_text(points)
    forget(monkeypatch)
    yield
    monkeypatch.undo()
    forget(monkeypatch)


def forget(monkeypatch):
    """Look for installed packages again."""
    monkeypatch.setattr(plugins, "_OFFERED", {})
    from orchestration.campaign import patterns, schema

    for one in (pattern.pattern_class, patterns._model, schema._with_patterns):
        one.cache_clear()


def test_it_is_planned_drawn_run_and_read_back(tmp_path):
    file = write(tmp_path)
    campaign = load_campaign(file)
    trial, testbed = campaign.trials[0], load_testbed("graphcc")
    ring = trial.traffic[0]
    hosts = len(testbed.hosts)
    assert (ring.size_bytes, ring.period_ns, ring.stop_ns) == (64_000, 10**6, 3 * 10**6)
    assert str(tmp_path / "ring.py") in trial.files
    schedule = make_schedule(trial, testbed)
    mine = schedule.klass == 0
    assert schedule.classes == ("Ring", "poisson:WebSearch")
    assert mine.sum() == 3 * hosts == ring.expected(testbed).flows
    assert (schedule.dst[mine] == (schedule.src[mine] + 1) % hosts).all()
    assert read_bounds(file).flows >= 3 * hosts

    assert run(file, tmp_path / "runs").exit_code == 0
    ran = [read_trial(folder) for folder in finished_trials(tmp_path / "runs" / "ring")]
    assert sorted(one.spec.id for one in ran) == sorted(one.id for one in campaign.trials)
    assert TrialSpec.from_json(json.loads(json.dumps(trial.to_json()))) == trial
    assert pickle.loads(pickle.dumps(trial)) == trial


def test_its_fields_are_checked_by_line(tmp_path):
    file = write(tmp_path, more=", perod: 1ms")
    file.write_text(file.read_text().replace("size: 64KB", "size: 0KB"))
    with pytest.raises(InputError) as caught:
        load_campaign(file)
    assert {problem.where for problem in caught.value.problems} == {f"{file}:6"}
    assert {problem.what for problem in caught.value.problems} == {
        "unknown field 'perod'",
        "'size' is 0",
    }


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ring.py:Rong", "ring.py has no 'Rong'"),
        ("rong.py:Ring", "there is no file"),
        ("ring.py:dataclass", "is not a traffic pattern"),
        ("ring", "unknown kind 'ring'"),
    ],
)
def test_a_kind_that_is_not_there_is_a_problem_of_its_line(kind, expected, tmp_path):
    with pytest.raises(InputError) as caught:
        load_campaign(write(tmp_path, kind=kind))
    assert [problem.where for problem in caught.value.problems] == [f"{tmp_path}/campaign.yml:6"]
    assert expected in str(caught.value)


def test_a_kind_that_makes_no_flows_is_a_problem_of_its_line(tmp_path):
    file = write(tmp_path, kind="bare.py:Bare")
    body = "from closloop import PatternSpec\n\n\nclass Bare(PatternSpec):\n    pass\n"
    (tmp_path / "bare.py").write_text(body)
    with pytest.raises(InputError, match="has no expected and no make_flows"):
        load_campaign(file)


def test_a_package_offers_it_and_a_folder_says_what_is_missing_without(
    tmp_path, package, monkeypatch
):
    file = write(tmp_path, kind="ring")
    trial = load_campaign(file).trials[0]
    assert type(trial.traffic[0]).__module__ == "ring_of_a_package"
    assert make_schedule(trial, load_testbed("graphcc")).classes[0] == "ring"
    assert np.array_equal(pickle.loads(pickle.dumps(trial)).traffic, trial.traffic)
    assert run(file, tmp_path / "runs").exit_code == 0
    folder = finished_trials(tmp_path / "runs" / "ring")[0]
    assert read_trial(folder).spec.traffic == trial.traffic

    (tmp_path / "ring-1.0.dist-info" / "entry_points.txt").write_text("")
    forget(monkeypatch)
    with pytest.raises(InputError, match="no installed package has the traffic pattern 'ring'"):
        read_trial(folder)
