"""A pattern of traffic: what a campaign says of it, and the flows that it makes.

A kind of pattern is one file: a frozen dataclass that derives from `PatternSpec`, with its fields,
what a campaign is told about them, and the flows. It is offered under its kind in the entry-point
group `closloop.patterns`, or a campaign names it as `kind: file.py:Class`. Ours are in
`traffic/patterns`.
"""

from __future__ import annotations

import copyreg
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, Self

import numpy as np

from orchestration.core import plugins
from orchestration.core.problems import Problem
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed

GROUP = "closloop.patterns"
Scalar = str | int | float | bool
# Placeholder for the number of the repeat in the names of recorded flows and actions.
REPEAT = "{repeat}"
# How patterns that offer a load draw the number and the sizes of their flows (traffic/arrivals.py).
# Files of 0.1 have no such field: `INDEPENDENT`.
Draw = Literal["strata", "independent"]
STRATA: Draw = "strata"
INDEPENDENT: Draw = "independent"

# What a field is, beyond its type: a number above 0; a share, above 0 and at most 1; how many hosts
# send to one; a host's name; a workload's name or file; a file, which may be a repeat's own.
Role = Literal["", "positive", "share", "senders", "host", "workload", "file"]
# The default of a field that a campaign has to name.
REQUIRED: Any = object()


@dataclass(frozen=True)
class DriverSpec:
    """The driver of a pattern's flows: sockets or a program, with (name, value) options."""

    name: str = "sockets"
    options: tuple[tuple[str, Scalar], ...] = ()


SOCKETS = DriverSpec()


@dataclass(frozen=True)
class Given:
    """How a campaign gives a field of a pattern: see `given`."""

    about: str = ""
    role: Role = ""
    default: Any = REQUIRED
    name: str = ""


def given(
    about: str = "", role: Role = "", *, default: Any = REQUIRED, name: str = ""
) -> Mapping[str, Given]:
    """Return the metadata of a dataclass field that a campaign gives.

    In the file, a field has its `name`, by default its own without the unit: `size` is
    `size_bytes`, and takes 64KB. `default` is that of the file, by default the dataclass's; None is
    a field that is left open, which becomes 0, or the trial's duration if it is `stop`.
    """
    return {"given": Given(about, role, default, name)}


# A window, which a campaign may leave out: from 0 to the trial's duration.
START = given("when the pattern begins", default=0)
STOP = given("when it ends; without it with the trial's duration", default=None)
DRAW = "how many flows, and of which sizes: exactly the load, or each drawn alone"


@dataclass(frozen=True)
class Streams:
    """The independent random streams of one pattern."""

    times: np.random.Generator
    places: np.random.Generator
    sizes: np.random.Generator

    @classmethod
    def spawn(cls, seed: int, pattern: int) -> Streams:
        """Return the streams of the pattern with index `pattern` in a trial of `seed`."""
        times, places, sizes = np.random.SeedSequence(seed, spawn_key=(pattern,)).spawn(3)
        return cls(*(np.random.default_rng(child) for child in (times, places, sizes)))


@dataclass(frozen=True)
class Flows:
    """Flows of one pattern, arrays of shape (flows,); `src` and `dst` index `Testbed.hosts`."""

    start_ns: Ints
    src: Ints
    dst: Ints
    size_bytes: Ints


@dataclass(frozen=True)
class Expected:
    """The expected number of flows, and their payload in bytes.

    Of replayed flows, which are in a file, this is a bound, and what they send is not known.
    """

    flows: float
    size_bytes: float

    def __add__(self, other: Expected) -> Expected:
        return Expected(self.flows + other.flows, self.size_bytes + other.size_bytes)


@dataclass(frozen=True)
class CampaignContext:
    """What a campaign has around a pattern, as far as it is known and right.

    `files` returns the paths of a file that the pattern names, one for each repeat that has its
    own. `reported` has the files whose faults were reported, and is extended.
    """

    testbed: Testbed | None
    duration_ns: int | None
    files: Callable[[str], tuple[str, ...]]
    reported: set[str]


@dataclass(frozen=True, kw_only=True)
class PatternSpec(ABC):
    """What every pattern says of its flows. Each kind derives from this.

    `queue_class` names one of the testbed's traffic classes. "" is the first of them, or the only
    queue of a port if there are none. A `driver` other than sockets runs on racks only.
    `congestion_control` is "" for that of the class, or else the hosts'.
    """

    queue_class: str = ""
    driver: DriverSpec = SOCKETS
    congestion_control: str = ""

    kind: ClassVar[str] = ""
    # The field of a campaign's file that makes the flows many, what it does (with `{flows}` and
    # `{memory}`), and what to do where they are too many.
    sized_by: ClassVar[tuple[str, str, str]] = ("", "it makes {flows:,.0f} flows", "use fewer")

    @abstractmethod
    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the flows; measurement begins at `warm_up_ns`.

        It is a pure function. Times, places and sizes are drawn from streams of their own, so that
        more flows leave the others as they are. Raises InputError for a file that cannot be read.
        """

    @abstractmethod
    def expected(self, testbed: Testbed) -> Expected:
        """Return what the pattern is likely to send, without drawing it.

        Raises InputError for an unknown workload, KeyError for a host that is not there.
        """

    def drawing_s(self, testbed: Testbed) -> float:
        """Return how long it takes to draw the flows on one core, beyond a time for each flow."""
        return 0.0

    @property
    def lasts(self) -> bool:
        """Whether its flows send for as long as the trial lasts."""
        return False

    @property
    def label(self) -> str:
        """The first part of the name of its flows' class."""
        return plugins.short_name(self.kind)

    @property
    def class_name(self) -> str:
        """The name of its flows' class: `incast/tcp/cubic` in class tcp, sent by cubic."""
        return "/".join(filter(None, (self.label, self.queue_class, self.congestion_control)))

    def impossible(self, testbed: Testbed) -> str:
        """Return what of this kind cannot be on the testbed, "" if nothing; see `wrong`."""
        return ""

    @classmethod
    def faults(cls, fields: Mapping[str, Any], around: CampaignContext) -> Iterator[Problem]:
        """Yield what is wrong in a campaign's fields of this kind, beyond each alone.

        `fields` has those that are right by themselves, by their names here. A problem's `where` is
        the name of a field in the file, or "".
        """
        yield from ()

    def cut(self, duration_ns: int, drain_ns: int, testbed: Testbed) -> Self:
        """Return the pattern in a trial of this length: its window ends with the trial.

        Raises ValueError if it would begin too late.
        """
        stop_ns = getattr(self, "stop_ns", None)
        return self if stop_ns is None else self.having(stop_ns=min(stop_ns, duration_ns))

    def of_repeat(self, repeat: int) -> Self:
        """Return the pattern of a repeat, which may have files of its own."""
        files = {name: of_repeat(getattr(self, name), repeat) for name in self.fields("file")}
        return self.having(**files)

    def having(self, **values: Any) -> Self:
        """Return the pattern with other values of some fields of its kind."""
        return dataclasses.replace(self, **values) if values else self

    def named(self, role: Role) -> list[Any]:
        """Return the values of the fields with a role."""
        return [getattr(self, name) for name in self.fields(role)]

    @classmethod
    def fields(cls, role: Role) -> list[str]:
        """Return the names of the fields with a role."""
        return [name for name, one in given_fields(cls).items() if one.role == role]

    def wrong(self, testbed: Testbed) -> str:
        """Return what makes the pattern impossible on the testbed, "" if nothing does."""
        if len(testbed.hosts) < 2:
            return f"testbed {testbed.name} has {len(testbed.hosts)} hosts: traffic needs 2 or more"
        classes = [klass.name for klass in testbed.classes]
        if self.queue_class and self.queue_class not in classes:
            known = f"its classes are {', '.join(classes)}" if classes else "it has none"
            return f"testbed {testbed.name} has no traffic class {self.queue_class!r}: {known}"
        for name, one in given_fields(type(self)).items():
            value = getattr(self, name)
            # what a pattern need not have is not checked where it has none
            if value != getattr(type(self), name, None):
                for each in (value or (0,)) if isinstance(value, tuple) else (value,):
                    if problem := _wrong(name, one.role, each, testbed):
                        return problem
        return self.impossible(testbed)


def _wrong(name: str, role: Role, value: Any, testbed: Testbed) -> str:
    """Return what is wrong with a field's value on a testbed."""
    hosts = testbed.hosts
    maximum = len(hosts) - 1
    if role == "share" and not 0 <= value <= 1:
        return f"load {value:g} is not a share of line rate: use 0 to 1"
    if role == "positive" and name.endswith("_bytes") and value < 1:
        return "a flow has at least 1 byte: name a larger size"
    if role == "positive" and name.endswith("_ns") and value < 1:
        return f"a period of {value} ns never ends: use 1 ns or more"
    if role == "senders" and not 1 <= value <= maximum:
        fits = f"does not fit testbed {testbed.name} of {maximum + 1} hosts: use 1 to {maximum}"
        return f"fan-in {value} {fits}"
    if role == "host" and value not in hosts:
        known = f"its hosts are {hosts[0]} to {hosts[-1]}"
        return f"testbed {testbed.name} has no host {value!r}: {known}"
    return ""


def given_fields(kind: type[PatternSpec]) -> dict[str, Given]:
    """Return the fields of a kind, but for those that all have, and how a campaign gives them."""
    common = {field.name for field in dataclasses.fields(PatternSpec)}
    return {
        field.name: field.metadata.get("given", Given())
        for field in dataclasses.fields(kind)
        if field.name not in common
    }


def of_repeat(name: str, repeat: int) -> str:
    """Return the name of a repeat's file: `flows-3.csv` for `flows-{repeat}.csv`."""
    return name.replace(REPEAT, str(repeat))


@cache
def pattern_class(kind: str) -> type[PatternSpec]:
    """Return the class of a kind of pattern, by its name or as `file.py:Class`.

    Raises PluginError if there is none.
    """
    if not plugins.is_file(kind) and kind not in plugins.offered(GROUP):
        what = f"no installed package has the traffic pattern {kind!r}"
        raise plugins.PluginError(what, f"install it; there are {', '.join(offered_kinds())}")
    loaded = plugins.load(kind, GROUP)
    if not (isinstance(loaded, type) and issubclass(loaded, PatternSpec)):
        remedy = "derive a frozen dataclass from closloop.PatternSpec"
        raise plugins.PluginError(f"{kind!r} is no pattern", remedy)
    if lacks := sorted(loaded.__abstractmethods__):
        remedy = "define it, as docs/extending.md shows"
        raise plugins.PluginError(f"{kind!r} has no {' and no '.join(lacks)}", remedy)
    if loaded.kind == kind:
        return loaded
    # a class in a file is called as the file is, and another process finds it there again
    own: type[PatternSpec] = type(loaded.__name__, (loaded,), {"kind": kind})
    copyreg.pickle(own, _reduced)
    return own


def offered_kinds() -> list[str]:
    """Return the kinds of patterns that installed packages offer, of which ours is one."""
    return sorted(plugins.offered(GROUP))


def _reduced(spec: PatternSpec) -> tuple[Callable[..., PatternSpec], tuple[Any, ...]]:
    return _made, (spec.kind, vars(spec))


def _made(kind: str, values: dict[str, Any]) -> PatternSpec:
    return pattern_class(kind)(**values)


def pattern_from_json(data: Mapping[str, Any]) -> PatternSpec:
    """Rebuild a pattern from a trial's JSON. Raises PluginError for a kind that is not there."""
    values: dict[str, Any] = dict(data)
    if "driver" in values:
        options = tuple((name, value) for name, value in values["driver"]["options"])
        values["driver"] = DriverSpec(values["driver"]["name"], options)
    values |= {name: tuple(one) for name, one in values.items() if isinstance(one, list)}
    return _made(values.pop("kind"), values)
