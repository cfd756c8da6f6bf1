"""Traffic patterns: the fields that a campaign gives, and the flows that the pattern makes.

A kind of pattern is one file: a frozen dataclass that derives from `PatternSpec`. It has the
pattern's fields, their descriptions for the campaign file, and the code that makes the flows. It is
offered under its kind in the entry-point group `closloop.patterns`, or a campaign names it as
`kind: file.py:Class`. closloop's own patterns are in `traffic/patterns`.
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
# In the names of files with recorded flows or actions, this stands for the number of the repeat.
REPEAT = "{repeat}"
# How patterns that offer a load draw the number and the sizes of their flows (traffic/arrivals.py).
# Trials of version 0.1 have no such field; for them it is `INDEPENDENT`.
Draw = Literal["strata", "independent"]
STRATA: Draw = "strata"
INDEPENDENT: Draw = "independent"

# What a field is, beyond its type: a number above 0; a share, above 0 and at most 1; the number of
# hosts that send to one; a host's name; a workload's name or file; a file, for which each repeat
# may have its own.
Role = Literal["", "positive", "share", "senders", "host", "workload", "file"]
# The default of a field that every campaign has to give.
REQUIRED: Any = object()


@dataclass(frozen=True)
class DriverSpec:
    """What sends a pattern's flows: sockets or a program, with options as (name, value) pairs."""

    name: str = "sockets"
    options: tuple[tuple[str, Scalar], ...] = ()


SOCKETS = DriverSpec()


@dataclass(frozen=True)
class Given:
    """How a campaign file gives a field of a pattern: see `given`."""

    about: str = ""
    role: Role = ""
    default: Any = REQUIRED
    name: str = ""


def given(
    about: str = "", role: Role = "", *, default: Any = REQUIRED, name: str = ""
) -> Mapping[str, Given]:
    """Return the metadata for a dataclass field that a campaign file gives.

    `about` describes the field in messages and docs. In the file, the field is called `name`; by
    default that is its name here without the unit: `size: 64KB` gives `size_bytes`. `default` is
    the default in the file; if it is not given, the dataclass's default is used. None means that
    the file may leave the field open: it then becomes 0, or for `stop` the trial's duration.
    """
    return {"given": Given(about, role, default, name)}


# The window in which a pattern sends. By default it lasts from 0 to the trial's duration.
START = given("when the pattern begins", default=0)
STOP = given("when it ends; without it with the trial's duration", default=None)
DRAW = "how many flows, and of which sizes: exactly the load, or each drawn alone"


@dataclass(frozen=True)
class Streams:
    """The independent random streams of one pattern: of start times, of hosts and of sizes."""

    times: np.random.Generator
    hosts: np.random.Generator
    sizes: np.random.Generator

    @classmethod
    def spawn(cls, seed: int, pattern: int) -> Streams:
        """Return the streams of the pattern with index `pattern` in a trial with this seed."""
        times, hosts, sizes = np.random.SeedSequence(seed, spawn_key=(pattern,)).spawn(3)
        return cls(*(np.random.default_rng(child) for child in (times, hosts, sizes)))


@dataclass(frozen=True)
class Flows:
    """The flows of one pattern, as arrays of shape (flows,).

    `src` and `dst` index `Testbed.hosts`. `start_ns` counts from the start of the trial.
    """

    start_ns: Ints
    src: Ints
    dst: Ints
    size_bytes: Ints


@dataclass(frozen=True)
class Expected:
    """The expected number of flows, and their payload in bytes.

    For replayed flows, which are in a file, the number is an upper bound, and the payload, which is
    not known before the file is read, is 0.
    """

    flows: float
    size_bytes: float

    def __add__(self, other: Expected) -> Expected:
        return Expected(self.flows + other.flows, self.size_bytes + other.size_bytes)


@dataclass(frozen=True)
class CampaignContext:
    """What a pattern's checks may use of the rest of the campaign.

    `testbed` and `duration_ns` are None if they are unknown or wrong. `files` returns the paths of
    a file that the pattern names: one for each repeat that has its own. `reported` has the files
    whose faults have been reported already; the checks add to it.
    """

    testbed: Testbed | None
    duration_ns: int | None
    files: Callable[[str], tuple[str, ...]]
    reported: set[str]


@dataclass(frozen=True, kw_only=True)
class PatternSpec(ABC):
    """The base class of all patterns.

    `queue_class` names one of the testbed's traffic classes. "" means the first class, or the only
    queue of a port on a testbed without classes. A `driver` other than sockets runs on racks only.
    If `congestion_control` is "", flows have that of their class, or else that of the hosts.
    """

    queue_class: str = ""
    driver: DriverSpec = SOCKETS
    congestion_control: str = ""

    kind: ClassVar[str] = ""
    # Whether its flows come in incasts: those with the same start and receiver are one incast.
    incasts: ClassVar[bool] = False
    # Whether its flows come in iterations of a collective: those with the same start are one.
    iterations: ClassVar[bool] = False
    # Fields that trials of earlier versions lack: a trial's data have them only if they differ from
    # their defaults, so that its id stays.
    newer: ClassVar[tuple[str, ...]] = ()
    # For the message about too many flows: the field of the campaign file that causes them, what is
    # wrong (with `{flows}` and `{memory}`), and the remedy.
    sized_by: ClassVar[tuple[str, str, str]] = ("", "it makes {flows:,.0f} flows", "use fewer")

    @abstractmethod
    def make_flows(self, testbed: Testbed, streams: Streams, warm_up_ns: int) -> Flows:
        """Return the flows; measurement begins at `warm_up_ns`.

        This is a pure function. Times, hosts and sizes are drawn from separate streams, so that
        adding flows does not change the others. Raises InputError for a file that cannot be read.
        """

    @abstractmethod
    def expected(self, testbed: Testbed) -> Expected:
        """Return the expected number of flows and their payload, without drawing them.

        Raises InputError for an unknown workload, KeyError for a host that the testbed lacks.
        """

    def drawing_s(self, testbed: Testbed) -> float:
        """Return the time to draw the flows on one core, in s, beyond the time for each flow."""
        return 0.0

    @property
    def lasts(self) -> bool:
        """Whether its flows are long-lived: they send for as long as the trial lasts."""
        return False

    @property
    def label(self) -> str:
        """The first part of `class_name`."""
        return plugins.short_name(self.kind)

    @property
    def class_name(self) -> str:
        """The name of its flows' class, such as `incast/tcp/cubic`.

        It has the pattern's label, the traffic class and the congestion control, if they are named.
        """
        return "/".join(filter(None, (self.label, self.queue_class, self.congestion_control)))

    def impossible(self, testbed: Testbed) -> str:
        """Return why a pattern of this kind cannot run on the testbed, "" if it can.

        `wrong` calls this after the checks that all kinds share.
        """
        return ""

    @classmethod
    def faults(cls, fields: Mapping[str, Any], context: CampaignContext) -> Iterator[Problem]:
        """Yield the problems of a campaign's fields in combination, or with the campaign.

        `fields` has the fields that are valid by themselves, under their names in the dataclass. A
        problem's `where` is the name of a field in the file, or "".
        """
        yield from ()

    def cut(self, duration_ns: int, drain_ns: int, testbed: Testbed) -> Self:
        """Return the pattern for a trial of this length: its window ends with the trial.

        Raises ValueError if it would begin after the trial's duration.
        """
        stop_ns = getattr(self, "stop_ns", None)
        return self if stop_ns is None else self.having(stop_ns=min(stop_ns, duration_ns))

    def of_repeat(self, repeat: int) -> Self:
        """Return the pattern of a repeat: `{repeat}` in names of files becomes its number."""
        files = {name: of_repeat(getattr(self, name), repeat) for name in self.fields("file")}
        return self.having(**files)

    def having(self, **values: Any) -> Self:
        """Return the pattern with some fields replaced."""
        return dataclasses.replace(self, **values) if values else self

    def named(self, role: Role) -> list[Any]:
        """Return the values of the fields with a role."""
        return [getattr(self, name) for name in self.fields(role)]

    @classmethod
    def fields(cls, role: Role) -> list[str]:
        """Return the names of the fields with a role."""
        return [name for name, field in given_fields(cls).items() if field.role == role]

    def wrong(self, testbed: Testbed) -> str:
        """Return why the pattern cannot run on the testbed, as `what: remedy`; "" if it can."""
        if len(testbed.hosts) < 2:
            return f"testbed {testbed.name} has {len(testbed.hosts)} hosts: traffic needs 2 or more"
        classes = [klass.name for klass in testbed.classes]
        if self.queue_class and self.queue_class not in classes:
            known = f"its classes are {', '.join(classes)}" if classes else "it has none"
            return f"testbed {testbed.name} has no traffic class {self.queue_class!r}: {known}"
        for name, field in given_fields(type(self)).items():
            value = getattr(self, name)
            # a default, such as "" for no receiver, need not be valid by the field's role, nor a 0
            # in a field that a campaign may leave open
            is_open = field.default is None and not value
            if value != getattr(type(self), name, None) and not is_open:
                for item in (value or (0,)) if isinstance(value, tuple) else (value,):
                    if problem := _wrong(name, field.role, item, testbed):
                        return problem
        return self.impossible(testbed)


def _wrong(name: str, role: Role, value: Any, testbed: Testbed) -> str:
    """Return what is wrong with a field's value on a testbed, as `what: remedy`; "" if nothing."""
    hosts = testbed.hosts
    maximum = len(hosts) - 1
    if role == "share" and not 0 <= value <= 1:
        return f"load {value:g} is not a share of line rate: use 0 to 1"
    if role == "positive" and name.endswith("_bytes") and value < 1:
        return "a flow has at least 1 byte: name a larger size"
    if role == "positive" and name.endswith("_ns") and value < 1:
        return f"a period of {value} ns never ends: use 1 ns or more"
    if role == "senders" and not 1 <= value <= maximum:
        what = f"fan-in {value} does not fit testbed {testbed.name} of {maximum + 1} hosts"
        return f"{what}: use 1 to {maximum}"
    if role == "host" and value not in hosts:
        known = f"its hosts are {hosts[0]} to {hosts[-1]}"
        return f"testbed {testbed.name} has no host {value!r}: {known}"
    return ""


def given_fields(kind: type[PatternSpec]) -> dict[str, Given]:
    """Return the fields that only this kind has, and how a campaign gives each of them."""
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
    """Return the class of a kind of pattern, given its name or `file.py:Class`.

    Raises PluginError for an unknown kind, and for a class that is not a pattern.
    """
    if not plugins.is_file(kind) and kind not in plugins.offered(GROUP):
        what = f"no installed package has the traffic pattern {kind!r}"
        raise plugins.PluginError(what, f"install it; there are {', '.join(offered_kinds())}")
    loaded = plugins.load(kind, GROUP)
    if not (isinstance(loaded, type) and issubclass(loaded, PatternSpec)):
        remedy = "derive a frozen dataclass from closloop.PatternSpec"
        raise plugins.PluginError(f"{kind!r} is not a traffic pattern", remedy)
    if lacks := sorted(loaded.__abstractmethods__):
        remedy = "define it, as docs/extending.md shows"
        raise plugins.PluginError(f"{kind!r} has no {' and no '.join(lacks)}", remedy)
    if loaded.kind == kind:
        return loaded
    # a class from a file has the reference as its kind, by which another process can unpickle it
    with_kind: type[PatternSpec] = type(loaded.__name__, (loaded,), {"kind": kind})
    copyreg.pickle(with_kind, _reduced)
    return with_kind


def offered_kinds() -> list[str]:
    """Return the kinds of patterns that installed packages offer, closloop included."""
    return sorted(plugins.offered(GROUP))


def _reduced(spec: PatternSpec) -> tuple[Callable[..., PatternSpec], tuple[Any, ...]]:
    return _made, (spec.kind, vars(spec))


def _made(kind: str, values: dict[str, Any]) -> PatternSpec:
    return pattern_class(kind)(**values)


def pattern_from_json(data: Mapping[str, Any]) -> PatternSpec:
    """Rebuild a pattern from a trial's JSON. Raises PluginError for a kind that is unknown."""
    values: dict[str, Any] = dict(data)
    if "driver" in values:
        options = tuple((name, value) for name, value in values["driver"]["options"])
        values["driver"] = DriverSpec(values["driver"]["name"], options)
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return _made(values.pop("kind"), values)
