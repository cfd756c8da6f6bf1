"""Verbs of packages: found by entry points, ours and a user's; a broken package stops nobody."""

from functools import partial

import pytest

from orchestration.cli import verbs
from orchestration.core import plugins
from orchestration.core.verb import RESULTS, Verb

MINE = Verb("mine", "Say what is mine.", "my_package.verbs:mine", "Mine")


@pytest.fixture
def package(monkeypatch):
    """Add a package's entry point; return all verbs."""
    before, resolve = plugins.offered(verbs.GROUP), plugins.resolve_name

    def add(load):
        there = {**before, "mine": "mine:VERBS"}
        monkeypatch.setattr(plugins, "offered", lambda group: there)
        found = {"mine:VERBS": load}
        monkeypatch.setattr(
            plugins, "resolve_name", lambda one: found.get(one, partial(resolve, one))()
        )
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
