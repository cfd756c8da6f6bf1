"""The calls by which functions hand on a value: what calls.py follows, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from names import DEFINITION, Class, Function, Names, Type
from values import (
    INSIDE,
    NO,
    NOTHING,
    PART,
    Arguments,
    Given,
    Value,
    all_parameters,
    either,
    element,
    held,
    known,
)

_ADDS = {"add", "append", "appendleft", "extend", "insert", "setdefault", "update"}
_TAKES = {"get", "pop", "popleft", "setdefault"}
_SAME = {"copy", "deepcopy", "deque", "dict", "filter", "frozenset", "fromkeys", "iter", "list"}
_SAME |= {"replace", "reversed", "set", "sorted", "tuple"}
_ONE = {"max", "min", "next"}


@dataclass(frozen=True)
class Call:
    """A call by which the parameter is handed on."""

    caller: Function
    line: int
    callee: Function | Class

    def __str__(self) -> str:
        return f"{self.caller} (line {self.line}) -> {self.callee}"


class Steps:
    """The calls so far; `held` says which attributes of objects hold the campaign, and how."""

    def __init__(self, names: Names, held: dict[Class, dict[str, int]]) -> None:
        self.names = names
        self.held = held
        self.calls: list[Call] = []
        self.ends: list[str] = []
        self.returned: dict[object, int] = {}

    def enter(self, function: Function, given: Given, own: Value) -> int:
        """Walk a function with what it is given; return how what it returns holds the campaign."""
        locals_ = {}
        if function.has_self:
            first = (function.node.args.posonlyargs + function.node.args.args)[0].arg
            locals_[first] = Value(own.holds, Type(function.owner.name, function.owner))
        return _Body(self, function, locals_).walk(function.node, given, (function, own.holds))

    def hold(self, cls: Class, attribute: str, holds: int) -> None:
        """Note that an attribute holds the campaign."""
        attributes = self.held.setdefault(cls, {})
        attributes[attribute] = max(attributes.get(attribute, NO), holds)


class _Body:
    """The statements of one function. `locals` is what is known of its names."""

    def __init__(self, steps: Steps, function: Function, locals_: dict[str, Value]) -> None:
        self.steps, self.names, self.function = steps, steps.names, function
        self.module = function.module
        self.locals = locals_
        self.inner: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.returned = NO

    def walk(self, node: DEFINITION, given: Given, which: object) -> int:
        """Walk a definition with what it is given, unless that was done; return what it returns."""
        key = (which, frozenset((name, one.holds) for name, one in given.items() if one.holds))
        if key not in self.steps.returned:
            self.steps.returned[key] = NO
            for one in all_parameters(node.args):
                value = given.get(one.arg, self.locals.get(one.arg, NOTHING))
                self.locals[one.arg] = self.typed(value, one.annotation)
            if node.args.vararg:
                one = self.locals[node.args.vararg.arg]
                kinds = (one.type or Type("?"), Type("..."))
                self.locals[node.args.vararg.arg] = replace(one, type=Type("tuple", None, kinds))
            self.block(node.body)
            self.steps.returned[key] = self.returned
        return self.steps.returned[key]

    def typed(self, value: Value, annotation: ast.expr | None) -> Value:
        declared = self.names.annotated(self.module, annotation, self.function.owner)
        if isinstance(annotation, ast.Name) and annotation.id in self.locals:
            cls = self.locals[annotation.id].target  # imported in the function
            declared = Type(cls.name, cls) if isinstance(cls, Class) else declared
        holds = NO if declared and declared.is_plain else value.holds
        return replace(value, type=declared or value.type, holds=holds)

    # Statements.

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self.locals[name] = known(self.names.imported(self.module, node, name))
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self.bind(target, value)
            case ast.AnnAssign():
                value = self.value(node.value) if node.value else NOTHING
                self.bind(node.target, self.typed(value, node.annotation))
            case ast.AugAssign():
                self.put(node.target, self.value(node.value).holds)
            case ast.Return():
                if node.value:
                    self.returned = max(self.returned, self.value(node.value).holds)
            case ast.For() | ast.AsyncFor():
                self.bind(node.target, element(self.value(node.iter)))
                self.block([*node.body, *node.orelse])
            case ast.While():
                self.value(node.test)
                self.block([*node.body, *node.orelse])
            case ast.If():
                self.value(node.test)
                self.branches([partial(self.block, node.body), partial(self.block, node.orelse)])
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr)
                    if item.optional_vars:
                        self.bind(item.optional_vars, self.entered(value))
                self.block(node.body)
            case ast.Try():
                handlers = [statement for one in node.handlers for statement in one.body]
                self.block([*node.body, *handlers, *node.orelse, *node.finalbody])
            case ast.Match():
                subject = self.value(node.subject)
                self.branches([partial(self.case, node, one, subject) for one in node.cases])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.locals[node.name] = NOTHING
                self.inner[node.name] = node
                self.within(node, {})
            case _:
                self.parts(node)

    def branches(self, branches: Sequence[Callable[[], None]]) -> None:
        """Walk branches one after the other, each from what is known before them."""
        before = self.locals
        after = dict(before)
        for branch in branches:
            self.locals = dict(before)
            branch()
            for name, value in self.locals.items():
                if name not in after or value.holds > after[name].holds:
                    after[name] = value
        self.locals = after

    def case(self, match: ast.Match, case: ast.match_case, subject: Value) -> None:
        classes = []
        for part in ast.walk(case.pattern):
            if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
                self.locals[part.name] = Value(subject.holds)
            elif isinstance(part, ast.MatchClass):
                classes.append(self.value(part.cls).target)
        if isinstance(match.subject, ast.Name) and len(classes) == 1:
            (cls,) = classes
            if isinstance(cls, Class):
                self.locals[match.subject.id] = replace(subject, type=Type(cls.name, cls))
        self.block(case.body)

    def within(self, node: DEFINITION, given: Given) -> int:
        """Walk a function that is defined within this one."""
        body = _Body(self.steps, self.function, dict(self.locals))
        body.inner = self.inner
        return body.walk(node, given, id(node))

    def bind(self, target: ast.expr, value: Value) -> None:
        """Bind names to a value, or put it into what holds it."""
        match target:
            case ast.Name():
                self.locals[target.id] = value
            case ast.Tuple() | ast.List():
                kinds = value.type.arguments if value.type and value.type.name == "tuple" else ()
                for index, one in enumerate(target.elts):
                    kind = kinds[index] if len(kinds) == len(target.elts) else None
                    self.bind(one, Value(held(value.holds, kind), kind))
            case ast.Starred():
                self.bind(target.value, value)
            case _:
                self.put(target, value.holds)

    def put(self, target: ast.expr, holds: int) -> None:
        """Note that what a target names holds the campaign from now on."""
        if not holds:
            return
        match target:
            case ast.Name():
                old = self.locals.get(target.id, NOTHING)
                self.locals[target.id] = replace(old, holds=max(old.holds, holds))
            case ast.Subscript():
                self.put(target.value, holds)
            case ast.Call(func=ast.Attribute()):
                self.put(target.func.value, holds)
            case ast.Attribute():
                holder = self.value(target.value)
                if holder.type and holder.type.cls:
                    self.steps.hold(holder.type.cls, target.attr, holds)

    # Expressions.

    def value(self, node: ast.expr) -> Value:
        """Walk an expression, and return what is known of its value."""
        match node:
            case ast.Name():
                if node.id in self.locals:
                    return self.locals[node.id]
                return known(self.names.resolve(self.module, node.id))
            case ast.Attribute():
                return self.attribute(node.attr, self.value(node.value))
            case ast.Call():
                return self.call(node)
            case ast.Subscript():
                value = self.value(node.value)
                self.value(node.slice)
                return value if isinstance(node.slice, ast.Slice) else element(value, by_key=True)
            case ast.IfExp():
                self.value(node.test)
                return either([self.value(node.body), self.value(node.orelse)])
            case ast.BoolOp():
                return either([self.value(one) for one in node.values])
            case ast.NamedExpr():
                value = self.value(node.value)
                self.bind(node.target, value)
                return value
            case ast.Starred() | ast.Await():
                return self.value(node.value)
            case ast.BinOp():
                return either([self.value(node.left), self.value(node.right)])
            case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
                return Value(self.parts(node))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self.comprehension("list", node.generators, [node.elt])
            case ast.DictComp():
                return self.comprehension("dict", node.generators, [node.key, node.value])
            case ast.Lambda():
                body = _Body(self.steps, self.function, dict(self.locals))
                body.locals |= {one.arg: NOTHING for one in all_parameters(node.args)}
                body.inner = self.inner
                body.value(node.body)
            case ast.Yield() | ast.YieldFrom():
                if node.value:
                    self.returned = max(self.returned, self.value(node.value).holds)
            case _:
                self.parts(node)
        return NOTHING

    def parts(self, node: ast.AST) -> int:
        """Walk the expressions directly below a node; return how they hold the campaign."""
        below = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return max((self.value(one).holds for one in below), default=NO)

    def comprehension(
        self, name: str, loops: list[ast.comprehension], made: list[ast.expr]
    ) -> Value:
        outer, self.locals = self.locals, dict(self.locals)
        for loop in loops:
            self.bind(loop.target, element(self.value(loop.iter)))
            for test in loop.ifs:
                self.value(test)
        values = [self.value(one) for one in made]
        self.locals = outer
        kinds = tuple(one.type or Type("?") for one in values)
        return Value(max(one.holds for one in values), Type(name, None, kinds))

    def entered(self, value: Value) -> Value:
        """Return what `with value as x` binds to x."""
        return Value(value.holds, self.names.entered(value.type, value.called))

    def attribute(self, name: str, holder: Value) -> Value:
        if holder.target is not None:
            return known(self.names.within(holder.target, name))
        classes = holder.type.classes if holder.type else []
        members = [self.names.member(cls, name) for cls in classes]
        member = next((one for one in members if one is not None), None)
        if isinstance(member, Function) and not member.is_property:
            return Value(NO, None, member)
        kind = self.names.returned(member) if isinstance(member, Function) else member
        holds = PART if holder.holds == PART else NO
        for cls in (base for one in classes for base in self.names.bases(one)):
            holds = max(holds, self.steps.held.get(cls, {}).get(name, NO))
        return Value(held(holds, kind), kind)

    # Calls.

    def call(self, node: ast.Call) -> Value:
        owner = NOTHING
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            function = self.attribute(node.func.attr, owner)
        else:
            function = self.value(node.func)
        given = Arguments(
            [(one, self.value(one)) for one in node.args],
            [(one.arg, self.value(one.value)) for one in node.keywords],
        )
        target = function.target
        if isinstance(node.func, ast.Name) and node.func.id in self.inner:
            inner = self.inner[node.func.id]
            kind = self.names.annotated(self.module, inner.returns)
            return Value(held(self.within(inner, given.bound(inner.args)), kind), kind)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            bases = list(self.names.bases(self.function.owner))[1:] if self.function.owner else []
            kind = Type(bases[0].name, bases[0]) if bases else None
            return Value(self.locals.get("self", NOTHING).holds, kind)
        if isinstance(target, Class):
            return self.construct(node, target, given)
        if isinstance(target, Function):
            return self.hand(
                node, target, owner, given.bound(target.node.args, skip_first=target.has_self)
            )
        return self.call_of_others(node, owner, function, given)

    def construct(self, node: ast.Call, cls: Class, given: Arguments) -> Value:
        made = Type(cls.name, cls)
        init = self.names.member(cls, "__init__")
        if isinstance(init, Function):
            arguments = given.bound(init.node.args, skip_first=True)
        else:
            arguments = given.bound(self.names.fields(cls))
        holding = {name: one.holds for name, one in arguments.items() if one.holds}
        if not holding:
            return Value(NO, made)
        self.steps.calls.append(Call(self.function, node.lineno, cls))
        if isinstance(init, Function):
            self.steps.enter(init, arguments, Value(INSIDE, made))
        else:
            for name, holds in holding.items():
                self.steps.hold(cls, name, holds)
        inside = any(self.steps.held.get(one) for one in self.names.bases(cls))
        return Value(INSIDE if inside else NO, made)

    def hand(self, node: ast.expr, function: Function, owner: Value, given: Given) -> Value:
        """Follow a call of a function of ours, if it is given the campaign."""
        kind = self.names.returned(function)
        own = owner if function.has_self else NOTHING
        if not own.holds and not any(one.holds for one in given.values()):
            return Value(NO, kind, None, function)
        if function.owner is not None and self.names.is_protocol(function.owner):
            classes = self.names.implementations(function.owner)
            one = self.names.member(classes[0], function.name) if len(classes) == 1 else None
            if not isinstance(one, Function):
                self.steps.ends.append(str(function))
                return Value(NO, kind, None, function)
            function = one
        self.steps.calls.append(Call(self.function, node.lineno, function))
        holds = self.steps.enter(function, given, own)
        return Value(held(holds, kind), kind, None, function)

    def call_of_others(
        self, node: ast.Call, owner: Value, function: Value, given: Arguments
    ) -> Value:
        """Return what a built-in, a collection's method or another's library gives."""
        first = next((one for one in given.values if one.holds), given.first)
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in _ADDS and first.holds:
                self.put(node.func.value, first.holds)
            if name == "items":
                kinds = owner.type.arguments if owner.type else ()
                return Value(owner.holds, Type("ItemsView", None, kinds))
            if name == "values":
                kind = owner.type.value if owner.type else None
                return Value(owner.holds, Type("list", None, (kind,)) if kind else None)
            if name in _TAKES:
                return element(owner, by_key=True)
            if name == "enter_context":
                return self.entered(given.first)
        else:
            name = getattr(node.func, "id", "")
        if name in _SAME:
            return replace(first if given.values else owner, called=None)
        if name in _ONE:
            return element(first)
        if name in ("enumerate", "zip"):
            kinds = [element(one).type or Type("?") for one in given.values]
            kinds = [Type("int"), *kinds[:1]] if name == "enumerate" else kinds
            return Value(first.holds, Type("list", None, (Type("tuple", None, tuple(kinds)),)))
        if function.type and function.type.name == "Callable" and function.type.arguments:
            return Value(NO, function.type.arguments[-1])
        return NOTHING
