"""What a name in a source means: a module, class, function or value of ours, and of which type.

Read from the sources alone: from imports wherever they stand, definitions, annotations and
constructor calls. What cannot be known so is None.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from imports import Sources

MAPPINGS = {"Mapping", "MutableMapping", "dict", "defaultdict", "OrderedDict", "ItemsView"}
COLLECTIONS = MAPPINGS | {
    *("Collection", "Iterable", "Iterator", "Generator", "Sequence", "MutableSequence", "list"),
    *("Set", "MutableSet", "set", "frozenset", "tuple", "deque", "Counter", "KeysView"),
    "ValuesView",
}
# Types of plain values: what is taken from an object as one of these is no longer part of it.
PLAIN = {"str", "int", "float", "bool", "bytes", "complex", "None", "...", "Path", "type"}
DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A module of ours."""

    name: str


@dataclass(frozen=True)
class Class:
    """A class of ours."""

    module: str
    name: str
    node: ast.ClassDef = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Function:
    """A function or method of ours; `owner` is the method's class."""

    module: str
    name: str
    node: DEFINITION = field(compare=False, repr=False)
    owner: Class | None = None

    def __str__(self) -> str:
        return f"{self.module}.{f'{self.owner.name}.' if self.owner else ''}{self.name}"

    @property
    def has_self(self) -> bool:
        """Whether its first parameter is the object or class that it is a method of."""
        return self.owner is not None and "staticmethod" not in self.decorators

    @property
    def is_property(self) -> bool:
        """Whether it is called without parentheses."""
        return bool(self.decorators & {"property", "cached_property"})

    @property
    def decorators(self) -> set[str]:
        """The last names of its decorators."""
        return {_last_name(one) for one in self.node.decorator_list}


@dataclass(frozen=True)
class Type:
    """A type: a class of ours, or by its name alone, with its arguments."""

    name: str
    cls: Class | None = None
    arguments: tuple[Type, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is a number, a text, a path, or a collection of only such."""
        if self.is_collection or self.name == "|":
            return bool(self.arguments) and all(one.is_plain for one in self.arguments)
        return self.cls is None and self.name in PLAIN

    @property
    def classes(self) -> list[Class]:
        """The classes of ours that it is, or of which it is one."""
        options = self.arguments if self.name == "|" else (self,)
        return [one.cls for one in options if one.cls is not None]

    @property
    def is_collection(self) -> bool:
        """Whether it has elements."""
        return self.name in COLLECTIONS

    @property
    def element(self) -> Type | None:
        """The type of what a loop over it gives."""
        known = tuple(one for one in self.arguments if one.name != "...")
        if self.name == "ItemsView":
            return Type("tuple", None, known)
        if not self.is_collection or not known:
            return None
        return Type("|", None, known) if self.name == "tuple" and len(known) > 1 else known[0]

    @property
    def value(self) -> Type | None:
        """The type of what it holds by key or index."""
        if self.name in MAPPINGS and len(self.arguments) == 2:
            return self.arguments[1]
        return self.element


Target = Module | Class | Function
Known = Target | Type


class Names:
    """The names of all modules below a root."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._scopes: dict[str, dict[str, ast.AST]] = {}
        self._of_classes: dict[Class, dict[str, ast.AST]] = {}

    def resolve(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> Known | None:
        """Return what a name at the top of a module means, through front doors and aliases."""
        node = self._scope(module).get(name)
        mark = f"{module}:{name}"
        if node is None or mark in seen:
            return None
        if isinstance(node, ast.ClassDef):
            return Class(module, name, node)
        if isinstance(node, DEFINITION):
            return Function(module, name, node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self.imported(module, node, name, seen | {mark})
        if isinstance(node, ast.AnnAssign):
            return self.annotated(module, node.annotation)
        assert isinstance(node, ast.Assign)
        return self._assigned(module, node.value, seen | {mark})

    def imported(
        self,
        module: str,
        node: ast.Import | ast.ImportFrom,
        name: str,
        seen: frozenset[str] = frozenset(),
    ) -> Known | None:
        """Return what an import statement in a module binds to a name."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                bound = alias.asname or alias.name.partition(".")[0]
                if bound == name:
                    whole = alias.name if alias.asname else bound
                    return Module(whole) if whole in self.sources.paths else None
            elif (alias.asname or alias.name) == name:
                source = self.sources.absolute(module, node)
                taken = self.sources.imported_from(module, source, alias.name)
                if taken == f"{source}.{alias.name}":
                    return Module(taken)
                if taken == source:
                    return self.resolve(source, alias.name, seen)
                return Type(alias.name)
        return None

    def _assigned(self, module: str, value: ast.expr, seen: frozenset[str]) -> Known | None:
        """Return what `NAME = value` at the top of a module means: an alias, type or instance."""
        if isinstance(value, ast.Call):
            made = self.dotted(module, value.func, seen)
            if isinstance(made, Class):
                return Type(made.name, made)
            if isinstance(made, Function):
                return self.returned(made)
            return None
        if isinstance(value, ast.Name | ast.Attribute):
            return self.dotted(module, value, seen)
        if isinstance(value, ast.BinOp | ast.Subscript):
            return self.annotated(module, value)
        return None

    def dotted(
        self, module: str, node: ast.expr, seen: frozenset[str] = frozenset()
    ) -> Known | None:
        """Return what a dotted name means at the top of a module."""
        if isinstance(node, ast.Name):
            return self.resolve(module, node.id, seen)
        if isinstance(node, ast.Attribute):
            return self.within(self.dotted(module, node.value, seen), node.attr)
        return None

    def within(self, holder: Known | None, name: str) -> Known | None:
        """Return what `holder.name` means where `holder` is a module or a class."""
        if isinstance(holder, Module):
            inner = f"{holder.name}.{name}"
            found = self.resolve(holder.name, name)
            return Module(inner) if found is None and inner in self.sources.paths else found
        if isinstance(holder, Class):
            return self.member(holder, name)
        return None

    def annotated(
        self, module: str, node: ast.expr | None, owner: Class | None = None
    ) -> Type | None:
        """Return the type that an annotation in a module means; `X | None` is X."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.annotated(module, ast.parse(node.value, mode="eval").body, owner)
            return Type("..." if node.value is ... else "None")
        if isinstance(node, ast.BinOp):
            sides = [self.annotated(module, side, owner) for side in (node.left, node.right)]
            known = [
                part
                for one in sides
                if one and one.name != "None"
                for part in (one.arguments if one.name == "|" else (one,))
            ]
            if len(known) < 2:
                return known[0] if known and None not in sides else None
            return Type("|", None, tuple(known))
        if isinstance(node, ast.Subscript):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            name = _last_name(node.value)
            if name in ("Annotated", "Final", "ClassVar", "Optional"):
                return self.annotated(module, inner[0], owner)
            if name == "Callable":
                returned = self.annotated(module, inner[-1], owner)
                return Type(name, None, (returned,) if returned else ())
            if name == "Literal":
                return Type("str")
            known = [self.annotated(module, one, owner) for one in inner]
            arguments = tuple(one or Type("?") for one in known)
            base = self.dotted(module, node.value)
            return Type(name, base if isinstance(base, Class) else None, arguments)
        if isinstance(node, ast.Name | ast.Attribute):
            name = _last_name(node)
            if name == "Self" and owner is not None:
                return Type(owner.name, owner)
            meant = self.dotted(module, node)
            if isinstance(meant, Class):
                return Type(meant.name, meant)
            return meant if isinstance(meant, Type) else Type(name)
        return None

    def returned(self, function: Function) -> Type | None:
        """Return the type that a function's annotation says that it returns."""
        return self.annotated(function.module, function.node.returns, function.owner)

    def entered(self, value: Type | None, function: Function | None) -> Type | None:
        """Return the type of `x` in `with value as x`, `function` being what was called for it."""
        if function is not None and "contextmanager" in function.decorators:
            return value.element if value else None
        if value is not None and value.cls is not None:
            enter = self.member(value.cls, "__enter__")
            return self.returned(enter) if isinstance(enter, Function) else None
        return None

    def bases(self, cls: Class) -> Iterator[Class]:
        """Yield a class and those of ours that it derives from, nearest first."""
        yield cls
        for base in cls.node.bases:
            found = self.dotted(cls.module, base.value if isinstance(base, ast.Subscript) else base)
            if isinstance(found, Class) and found != cls:
                yield from self.bases(found)

    def member(self, cls: Class, name: str) -> Function | Type | None:
        """Return a method or property of a class, or the type of an attribute."""
        for one in self.bases(cls):
            node = self._members(one).get(name)
            if isinstance(node, DEFINITION):
                return Function(one.module, name, node, one)
            if isinstance(node, ast.AnnAssign):
                return self.annotated(one.module, node.annotation, one)
            if node is not None:
                found = self._from_init(one, node)
                if found is not None:
                    return found
        return None

    def fields(self, cls: Class) -> ast.arguments:
        """Return the annotated attributes of a class as the parameters that a dataclass has."""
        listed: dict[str, ast.arg] = {}
        for one in reversed(list(self.bases(cls))):
            for node in one.node.body:
                if isinstance(node, ast.AnnAssign) and _last_name(node.annotation) != "ClassVar":
                    name = _last_name(node.target)
                    listed[name] = ast.arg(name, node.annotation)
        return ast.arguments([], list(listed.values()), None, [], [], None, [])

    def is_protocol(self, cls: Class) -> bool:
        """Return whether a class is a protocol."""
        return any(_last_name(base) == "Protocol" for base in cls.node.bases)

    def implementations(self, protocol: Class) -> list[Class]:
        """Return the classes of ours that have all that a protocol names, or derive from it."""
        asked = frozenset(self._members(protocol))
        found = []
        for module, name in self.sources.classes_with(asked):
            cls = self.resolve(module, name)
            if isinstance(cls, Class) and not self.is_protocol(cls):
                found.append(cls)
        return found

    def _from_init(self, cls: Class, node: ast.AST) -> Type | None:
        """Return the type of `self.x = value` in `__init__`: a parameter's, or a class called."""
        assert isinstance(node, ast.Assign)
        value = node.value
        init = self._members(cls).get("__init__")
        if isinstance(value, ast.Call):
            made = self.dotted(cls.module, value.func)
            if isinstance(made, Class):
                return Type(made.name, made)
            return self.returned(made) if isinstance(made, Function) else None
        if isinstance(value, ast.Name) and isinstance(init, DEFINITION):
            for argument in (*init.args.args, *init.args.kwonlyargs):
                if argument.arg == value.id:
                    return self.annotated(cls.module, argument.annotation, cls)
        return None

    def _members(self, cls: Class) -> Mapping[str, ast.AST]:
        """Return what a class's body defines, and its `__init__` assigns to `self`."""
        if cls in self._of_classes:
            return self._of_classes[cls]
        members: dict[str, ast.AST] = {}
        for node in cls.node.body:
            if isinstance(node, DEFINITION):
                members.setdefault(node.name, node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                members.setdefault(node.target.id, node)
        for node in cls.node.body:
            if isinstance(node, DEFINITION) and node.name in ("__init__", "__post_init__"):
                for one in ast.walk(node):
                    if isinstance(one, ast.Assign | ast.AnnAssign):
                        target = one.targets[0] if isinstance(one, ast.Assign) else one.target
                        if isinstance(target, ast.Attribute) and _last_name(target.value) == "self":
                            members.setdefault(target.attr, one)
        self._of_classes[cls] = members
        return members

    def _scope(self, module: str) -> Mapping[str, ast.AST]:
        """Return the statement that binds each name at the top of a module."""
        if module not in self._scopes:
            scope: dict[str, ast.AST] = {}
            if module in self.sources.paths:
                _bind(self.sources.tree(module).body, scope)
            self._scopes[module] = scope
        return self._scopes[module]


def _bind(body: list[ast.stmt], scope: dict[str, ast.AST]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef | DEFINITION):
            scope[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                scope[alias.asname or alias.name.partition(".")[0]] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            scope[node.target.id] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    scope[target.id] = node
        elif isinstance(node, ast.If | ast.Try):
            _bind([*node.body, *node.orelse], scope)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
