"""Finds the commands that the sources name in texts: in remedies, in help and on pages."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from trees import product

from orchestration.cli.verbs import load, verbs

# A word that is neither an option nor looks like a placeholder or a path ends a command.
_VALUE = r"[A-Z][A-Z_]*\b|\{\}|[\w./*-]*[./*{][\w./*{}-]*|\d[\w,-]*"
_WORD = re.compile(rf" +(?:(?P<option>--?[a-z][\w-]*)|(?P<value>{_VALUE}))")
_VERBS = {verb.name for verb in verbs().values()}


@dataclass(frozen=True)
class Command:
    """A command in a text: its verb, sub-verb included, options and number of arguments."""

    where: str
    verb: tuple[str, ...]
    options: tuple[str, ...]
    arguments: int

    @property
    def form(self) -> str:
        """Verb and options."""
        return " ".join((*self.verb, *sorted(self.options)))


def docstring(node: ast.AST) -> list[ast.Expr]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    body = node.body if isinstance(node, kinds) else []
    return [one for one in body[:1] if isinstance(one, ast.Expr)]


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Return `file:line` and text of each literal, with {} for what is filled in."""
    found = []
    for source in product():
        skip = {id(text.value) for node in source.nodes for text in docstring(node)}
        for node in source.nodes:
            if isinstance(node, ast.JoinedStr):
                skip.update(id(part) for part in node.values)
        for node in source.nodes:
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
                found.append((f"{source.name}:{node.lineno}", "".join(map(str, parts))))
            elif isinstance(node, ast.Constant) and id(node) not in skip:
                found.append((f"{source.name}:{node.lineno}", str(node.value)))
    return tuple(found)


@cache
def click_command(verb: tuple[str, ...]) -> Any:
    """Return a verb's command; None if there is none."""
    found: Any = load(verb[0])
    for name in verb[1:]:
        found = getattr(found, "commands", {}).get(name)
    return found


def takes_value(command: Any, option: str) -> bool:
    """Return whether an option of a command takes a value; KeyError if there is no such option."""
    if option == "--help":
        return False
    (found,) = [p for p in command.params if option in (*p.opts, *p.secondary_opts)] or [None]
    if found is None:
        raise KeyError(option)
    return not found.is_flag


def commands(where: str, text: str) -> Iterator[Command]:
    """Yield the commands of closloop in a text. Raises KeyError for an option that none has."""
    for match in re.finditer(r"(?<![\w/-])closloop ((?:[a-z][a-z-]*))", text):
        verb: tuple[str, ...] = (match[1],)
        if match[1] not in _VERBS or text[match.end() : match.end() + 1].isalnum():
            continue
        at = match.end()
        command = click_command(verb)
        if hasattr(command, "commands"):
            below = re.match(r" ([a-z][a-z-]*)", text[at:])
            if below and below[1] in command.commands:
                verb, at = (*verb, below[1]), at + below.end()
                command = click_command(verb)
        options: list[str] = []
        arguments, wants = 0, False
        while word := _WORD.match(text, at):
            if word["option"]:
                options.append(word["option"])
                wants = takes_value(command, word["option"])
            elif wants:
                wants = False
            else:
                arguments += 1
            at = word.end()
        if wants:  # its value is a plain word
            plain = re.match(r" [\w.,:%=-]+", text[at:])
            assert plain, f"{where}: {options[-1]} of `closloop {' '.join(verb)}` lacks its value"
            at += plain.end()
        yield Command(where, verb, tuple(options), arguments)
