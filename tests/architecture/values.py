"""What is known of values, and which of them hold the parameter that calls.py follows."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from names import Class, Function, Known, Module, Type

# How a value holds the campaign: not at all, in some of its attributes, or as a part of it.
NO, INSIDE, PART = range(3)


@dataclass(frozen=True)
class Value:
    """What is known of an expression's value; `called` is the function whose call it is."""

    holds: int = NO
    type: Type | None = None
    target: Module | Class | Function | None = None
    called: Function | None = None


NOTHING = Value()
Given = Mapping[str, Value]


class Arguments:
    """The arguments of a call: those by position, and those by name."""

    def __init__(
        self, listed: Sequence[tuple[ast.expr, Value]], named: Sequence[tuple[str | None, Value]]
    ) -> None:
        self._listed, self._named = listed, named
        self.values = [value for _, value in (*listed, *named)]
        self.first = self.values[0] if self.values else NOTHING

    def bound(self, parameters: ast.arguments, *, skip_first: bool = False) -> dict[str, Value]:
        """Return the values by the names of the parameters that they are given to."""
        names = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
        names = names[1:] if skip_first else names
        given: dict[str, Value] = {}
        for index, (node, value) in enumerate(self._listed):
            if isinstance(node, ast.Starred):
                given.update(dict.fromkeys(names[index:], element(value)))
            elif index < len(names):
                given[names[index]] = value
            elif parameters.vararg:
                old = given.get(parameters.vararg.arg, NOTHING)
                given[parameters.vararg.arg] = Value(max(old.holds, value.holds))
        given.update({name: value for name, value in self._named if name})
        return given


def known(found: Known | None) -> Value:
    return Value(NO, found) if isinstance(found, Type) else Value(NO, None, found)


def held(holds: int, kind: Type | None) -> int:
    """Return how a value of a type holds the campaign: a plain one does not."""
    return NO if kind is not None and kind.is_plain else holds


def element(value: Value, *, by_key: bool = False) -> Value:
    kind = None
    if value.type is not None:
        kind = value.type.value if by_key else value.type.element
    return Value(held(value.holds, kind), kind)


def either(values: Sequence[Value]) -> Value:
    kinds = [one.type for one in values if one.type and one.type.name != "None"]
    return Value(max(one.holds for one in values), kinds[0] if kinds else None)


def all_parameters(arguments: ast.arguments) -> list[ast.arg]:
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [*listed, *filter(None, (arguments.vararg, arguments.kwarg))]
