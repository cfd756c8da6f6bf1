"""All verbs find runs alike: a trial's folder, a campaign's, or one that holds campaigns."""

from __future__ import annotations

import shutil

import pytest

from orchestration.exchange.source import read_source
from orchestration.results.reader import campaign_below, find_trials, finished_trials, trial_folders
from orchestration.telemetry.sender import _trials


@pytest.fixture
def runs(campaign, tmp_path):
    """Two campaigns of two trials each, one of a trial that is a link, and one that is hidden."""
    first, second, *_ = finished_trials(campaign)
    for name in ("a", "b", ".aside"):
        for folder in (first, second):
            shutil.copytree(folder, tmp_path / name / folder.name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / first.name).symlink_to(tmp_path / "a" / first.name)
    return tmp_path


def test_trials_are_found_at_and_below_a_path(runs):
    found = trial_folders(runs)
    assert [campaign_below(runs, folder) for folder in found] == ["a", "a", "b", "b", "c"]
    assert trial_folders(runs / "a") == finished_trials(runs / "a") == found[:2]
    assert {campaign_below(runs / "a", folder) for folder in found[:2]} == {""}
    assert trial_folders(found[0]) == [found[0]]
    assert campaign_below(found[0], found[0]) == ""
    assert trial_folders(runs / "nowhere") == []
    assert len(find_trials([runs])) == 4  # each once: the link leads to one of them


def test_exports_and_pushes_take_the_same_paths(runs):
    assert len(read_source(runs)) == len(trial_folders(runs))
    wanted = _trials([runs])
    assert [len(folders) for folders in wanted.values()] == [2, 2, 1]
    assert list(wanted) == [runs / name for name in "abc"]
