"""Verbs of packages: found by entry points, ours and a user's; a broken package stops nobody."""

import pytest

from orchestration.cli import verbs
from orchestration.core import plugins
from orchestration.core.verb import RESULTS, Verb

MINE = Verb("mine", "Say what is mine.", "my_package.verbs:mine", "Mine")


class Point:
    """An entry point of a package that may not load."""

    def __init__(self, load):
        self.load = load


@pytest.fixture
def package(monkeypatch):
    """Add a package's entry point; return all verbs."""
    before = plugins.offered(verbs.GROUP)

    def add(load):
        there = {**before, "mine": Point(load)}
        monkeypatch.setattr(plugins, "offered", lambda group: there)
        return verbs.verbs.__wrapped__()

    return add


def test_a_users_verb_stands_behind_ours_under_its_own_heading(package):
    assert list(package(lambda: (MINE,)))[-1] == "mine"


def test_a_verb_under_a_heading_of_ours_stands_there(package):
    found = list(package(lambda: (Verb("mine", "", "m:v", RESULTS),)))
    assert found.index("report") < found.index("mine") < found.index("doctor")


def test_a_package_that_cannot_be_loaded_is_left_out_with_a_warning(package):
    def broken():
        raise ImportError("no module named my_package")

    with pytest.warns(FutureWarning, match="no module named my_package"):
        found = package(broken)
    assert "mine" not in found
    assert "run" in found


def test_a_verb_whose_name_is_taken_is_left_out_with_a_warning(package):
    with pytest.warns(FutureWarning, match="offers another verb 'run'"):
        found = package(lambda: (Verb("run", "", "my_package:run"),))
    assert found["run"].target == "orchestration.cli.run:run"
