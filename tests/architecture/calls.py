"""Follows one parameter through the code: which modules it enters, and how often it goes back up.

Nothing is run. From one function on, every call is followed by which the parameter is handed on to
a function, class or method of ours, in the order in which the code is written; a call that leads to
a function is followed into it before the next one.

What is followed (the parameter is called the campaign here):
- the campaign; a name bound to it; an attribute of it and an element of it that is no plain value,
  such as `campaign.trials` or one trial; a list, dictionary or generator of such;
- what was built from it: an object of ours that got it when it was made, and what a function
  returns that returns it, or a thing built from it. Of such an object only the attributes in which
  it was put are followed, and so are its methods, to which it is handed as `self`;
- not plain values that were taken from it: numbers, texts, paths, and collections of these.

What a call leads to is known from imports (at the top or within a function), `module.function`,
`self.method`, and methods of values whose class is known: from an annotation, a constructor's
call, or the annotation of what a function returns. A function that is itself handed on by its name
is followed where it is called. A protocol's method leads to the class of ours that has all that the
protocol names, if there is only one; where there are several, the walk ends: which of them it is,
was composed elsewhere. Reading a property is no call. Calls of others' libraries, and of what is
not known, lead nowhere. A function is walked once with each set of parameters that hold the
campaign.

A call goes up if it enters a module, other than the caller's, whose package stands on a higher
floor than that of the caller, or than that of the module that was entered last: the campaign has
been further down, and is taken up again. A return to the caller's module is no call. The floor of
a package is the length of the longest chain of imports from it down.

Run as a program, it prints the walk of `FILE:FUNCTION:PARAMETER`, or that of a campaign which runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bodies import Call, Steps
from graphs import floors
from imports import Sources, package_of, sources
from names import Class, Function, Names
from values import NOTHING, PART, Value, all_parameters


@dataclass(frozen=True)
class Walk:
    """The calls in order. `ends` are the methods of protocols that several classes have."""

    start: Function
    calls: tuple[Call, ...]
    ends: tuple[str, ...]

    @property
    def modules(self) -> list[str]:
        """The modules that the parameter enters, in order."""
        entered = [self.start.module, *(call.callee.module for call in self.calls)]
        return list(dict.fromkeys(entered))

    def upward(self, floor_of: Callable[[str], int]) -> list[Call]:
        """Return the calls that go up; `floor_of` gives the floor of a module's package."""
        found, last = [], self.start.module
        for call in self.calls:
            caller, callee = call.caller.module, call.callee.module
            below = min(floor_of(caller), floor_of(last))
            if callee != caller and floor_of(callee) > below:
                found.append(call)
            last = callee
        return found

    def in_words(self, floor_of: Callable[[str], int]) -> str:
        """Return the modules, each with its floor, and the calls that go up."""
        modules = self.modules
        upward = self.upward(floor_of)
        lines = [f"{len(modules)} modules:"]
        lines += [f"  floor {floor_of(module):2} {module}" for module in modules]
        lines += [f"{len(upward)} calls up:", *(f"  {call}" for call in upward)]
        return "\n".join([*lines, "ends at protocols: " + (", ".join(self.ends) or "none")])


def walk(of: Sources, module: str, function: str, parameter: str) -> Walk:
    """Follow a parameter of a function, or of a method `Class.method`."""
    names = Names(of)
    holder, _, name = function.rpartition(".")
    start = names.resolve(module, holder or name)
    if isinstance(start, Class):
        start = names.member(start, name)
    if not isinstance(start, Function) or parameter not in _names_of_parameters(start):
        raise LookupError(f"{module} has no {function} with a parameter {parameter!r}")
    # What objects hold is known when all calls have been seen: repeat until nothing is new.
    held: dict[Class, dict[str, int]] = {}
    while True:
        before = {cls: dict(attributes) for cls, attributes in held.items()}
        steps = Steps(names, held)
        steps.enter(start, {parameter: Value(PART)}, NOTHING)
        if held == before:
            return Walk(start, tuple(steps.calls), tuple(dict.fromkeys(steps.ends)))


def _names_of_parameters(function: Function) -> set[str]:
    return {one.arg for one in all_parameters(function.node.args)}


def floor_of(of: Sources) -> Callable[[str], int]:
    """Return what gives the floor of a module's package."""
    floor = floors(of.packages)
    return lambda module: floor[package_of(module)]


def report(of: Sources, start: str) -> Iterator[str]:
    """Yield the walk of `FILE:FUNCTION:PARAMETER`, call by call."""
    file, function, parameter = start.split(":")
    module = file.removesuffix(".py").replace("/", ".")
    made, floor = walk(of, module, function, parameter), floor_of(of)
    upward = made.upward(floor)
    for call in made.calls:
        mark = "UP" if call in upward else "  "
        yield f"{mark} {floor(call.callee.module):2} {call}"
    yield made.in_words(floor)


if __name__ == "__main__":
    place = sys.argv[1] if sys.argv[1:] else "orchestration/cli/run.py:RunOptions.run:campaign"
    print(*report(sources(), place), sep="\n")
