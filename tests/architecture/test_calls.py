"""A walk of a parameter follows what it is to follow: shown on a made-up tree."""

import textwrap

import pytest
from calls import floor_of, walk

CORE = """
from dataclasses import dataclass
@dataclass
class Trial:
    seed: int
    name: str
    def key(self) -> str: ...
@dataclass
class Campaign:
    name: str
    trials: tuple[Trial, ...]
    @property
    def first(self) -> Trial: ...
"""
START = """
from orchestration.core.trial import Campaign, Trial
def start(campaign: Campaign, name: str):
"""


def walked(made, steps, **files):
    """Walk a function of these steps in orchestration.run.start; return the calls."""
    body = textwrap.indent(steps, "    ")
    texts = {"orchestration/core/trial.py": CORE, "orchestration/run/start.py": START + body}
    more = {f"orchestration/{name}.py": text for name, text in files.items()}
    way = walk(made(texts | more), "orchestration.run.start", "start", "campaign")
    return [str(call.callee).removeprefix("orchestration.") for call in way.calls], way


@pytest.mark.parametrize(
    "steps",
    {
        "itself": "take(campaign)",
        "by a name": "one = campaign\ntake(one)",
        "an attribute": "take(campaign.trials)",
        "a property": "take(campaign.first)",
        "an element": "for trial in campaign.trials:\n    take(trial)",
        "one of them": "take(campaign.trials[0])",
        "in a comprehension": "[take(trial) for trial in campaign.trials if trial.seed]",
        "a list of some": "some = [trial for trial in campaign.trials]\ntake(some[1:])",
        "in a dictionary": "by = {}\nfor one in campaign.trials:\n    by[one.seed] = one\ntake(by)",
        "what was added to": "some = []\nsome.append(campaign.first)\ntake(some)",
        "by a keyword": "take(campaign=campaign)",
        "of a module": "from orchestration import store\nstore.take(campaign)",
        "through a front door": "from orchestration.doors import take as put\nput(campaign)",
        "in a function within": "def inner(one):\n    take(one)\ninner(campaign)",
        "of a lambda": "run = lambda: take(campaign)",
        "under a condition": "if name:\n    one = campaign\nelse:\n    one = None\ntake(one)",
        "in a match": "match campaign:\n    case Campaign(trials=trials):\n        take(trials)",
    }.items(),
    ids=lambda item: item[0],
)
def test_the_campaign_is_followed(made, steps):
    store = "def take(campaign): ..."
    door = "from orchestration.store import take\n__all__ = ['take']"
    text = f"from orchestration.store import take\n{steps[1]}"
    calls, way = walked(made, text, store=store, doors__init__="", **{"doors/__init__": door})
    assert calls == ["store.take"]
    assert way.modules == ["orchestration.run.start", "orchestration.store"]


@pytest.mark.parametrize(
    "steps",
    [
        "take(campaign.name)",
        "take(name)",
        "take(f'{campaign.name} {campaign.trials}')",
        "take([trial.name for trial in campaign.trials])",
        "for trial in campaign.trials:\n    take(trial.seed)",
        "take(len(campaign.trials))",
        "campaign = name\ntake(campaign)",
        "print(campaign)",
        "unknown.take(campaign)",
    ],
)
def test_plain_values_and_others_calls_are_not_followed(made, steps):
    text = f"from orchestration.store import take\n{steps}"
    assert walked(made, text, store="def take(campaign): ...")[0] == []


STORE = """
from dataclasses import dataclass
from collections.abc import Iterator
from contextlib import contextmanager
from orchestration.core.trial import Campaign, Trial
def keep(trial): ...
def drop(path): ...
class Folder:
    def __init__(self, path):
        self.path = path
    def open(self, campaign): ...
    def close(self): ...
class Rounds:
    def __init__(self, campaign: Campaign, path: str):
        self._trials, self.path = [], path
        self._trials += campaign.trials
        self._folder = Folder(path)
    def due(self):
        drop(self.path)
        return list(self._trials)
    def run(self):
        for trial in self.due():
            keep(trial)
        self._folder.close()
@dataclass
class Job:
    trial: Trial
    path: str
def trials_of(campaign: Campaign) -> list[Trial]:
    return [trial for trial in campaign.trials]
def names_of(campaign: Campaign) -> list[str]:
    return [trial.name for trial in campaign.trials]
def made_of(name: str) -> Folder:
    return Folder(name)
@contextmanager
def opened(campaign: Campaign) -> Iterator[Rounds]:
    yield Rounds(campaign, "")
def each(do, campaign):
    do(campaign)
"""


@pytest.mark.parametrize(
    ("steps", "calls"),
    [
        ("store.Rounds(campaign, name).run()", "Rounds Rounds.run Rounds.due keep"),
        ("store.drop(store.Rounds(campaign, name).path)", "Rounds"),
        ("job = store.Job(campaign.first, name)\nstore.keep(job)", "Job keep"),
        ("job = store.Job(campaign.first, name)\nstore.keep(job.path)", "Job"),
        ("store.keep(store.trials_of(campaign))", "trials_of keep"),
        ("store.keep(store.names_of(campaign))", "names_of"),
        ("folder = store.Folder(name)\nfolder.open(campaign)\nfolder.close()", "Folder.open"),
        ("store.made_of(name).open(campaign)", "Folder.open"),
        ("with store.opened(campaign) as rounds:\n    rounds.due()", "opened Rounds Rounds.due"),
        ("store.each(store.keep, campaign)", "each keep"),
        ("store.keep(campaign)\nstore.keep(campaign.first)", "keep keep"),
    ],
)
def test_what_is_built_from_the_campaign_is_followed_and_nothing_beside_it(made, steps, calls):
    found, _ = walked(made, f"from orchestration import store\n{steps}", store=STORE)
    assert found == [f"store.{call}" for call in calls.split()]


def test_its_own_methods_are_calls(made):
    calls, _ = walked(made, "for trial in campaign.trials:\n    trial.key()")
    assert calls == ["core.trial.Trial.key"]


def test_a_protocol_leads_to_its_only_class_and_ends_the_walk_where_there_are_two(made):
    check = "    def check(self, campaign): ..."
    place = f"from typing import Protocol\nclass Place(Protocol):\n{check}"
    here = f"class Here:\n{check}"
    steps = "from orchestration.place import Place\nplace: Place = find()\nplace.check(campaign)"
    calls, way = walked(made, steps, place=place, here=here)
    assert (calls, way.ends) == (["here.Here.check"], ())
    calls, way = walked(made, steps, place=place, here=here, there=here.replace("Here", "There"))
    assert (calls, way.ends) == ([], ("orchestration.place.Place.check",))


LEVELS = {
    "low/a": "def low(campaign): ...",
    "middle/b": "import orchestration.low.a\ndef middle(campaign): ...\ndef other(x): ...",
    "high/c": """
from orchestration.middle.b import middle
def high(campaign):
    middle(campaign)
""",
}
FROM_LEVELS = """
from orchestration.low.a import low
from orchestration.middle.b import middle, other
from orchestration.high.c import high
def own(campaign): ...
"""


@pytest.mark.parametrize(
    ("steps", "upward"),
    [
        ("high middle low", ""),
        ("middle other", ""),
        ("low middle", "middle"),
        ("low middle low high", "middle high"),
        ("low own", ""),
    ],
)
def test_a_call_goes_up_where_the_campaign_was_further_down_before(made, steps, upward):
    text = FROM_LEVELS + "\n".join(f"{step}(campaign)" for step in steps.split())
    _, way = walked(made, text, **LEVELS)
    found = way.upward(floor_of(made({})))
    assert " ".join(str(call.callee).rpartition(".")[2] for call in found) == upward


def test_a_parameter_that_is_not_there_is_an_error(made):
    of = made({"orchestration/run/start.py": START + "    pass"})
    for function, parameter in (("start", "trial"), ("stop", "campaign")):
        with pytest.raises(LookupError, match=function):
            walk(of, "orchestration.run.start", function, parameter)
