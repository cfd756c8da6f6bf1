"""docs/glossary.md: few terms, each once and with a source, none of which another one replaces.

A replaced name may be gone from the code: then its renaming is done.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAX_TERMS = 120
HEADER = "| word | meaning | source | instead of |"
NONE = "–"
# An identifier with or without its module's name, the beginning of one, or a path of the project.
CODE_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*|\w+(/\w+)+(\.(py|c|h))?")


@dataclass(frozen=True)
class Term:
    """A row of the glossary; `replaced` are the entries of its last column."""

    group: str
    word: str
    meaning: str
    source: str
    replaced: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The replaced names of code, without their backticks."""
        return tuple(name[1:-1] for name in self.replaced if name.startswith("`"))

    @property
    def prose(self) -> tuple[str, ...]:
        """The replaced words that are no names of code."""
        return tuple(entry for entry in self.replaced if not entry.startswith("`"))

    @property
    def spellings(self) -> set[str]:
        """How the word can be written: as listed, without its abbreviation, and that alone."""
        return {plain(part) for part in re.split(r", | \(|\)", self.word) if part}


def plain(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def terms() -> tuple[Term, ...]:
    found, group = [], ""
    for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            group = line[3:]
        elif line.startswith("| ") and line != HEADER and not line.startswith("| ---"):
            word, meaning, source, replaced = line.strip("| ").split(" | ")
            entries = () if replaced == NONE else tuple(replaced.split(", "))
            found.append(Term(group, word, meaning, source, entries))
    return tuple(found)


TERMS = terms()


def test_the_glossary_is_short() -> None:
    assert 0 < len(TERMS) <= MAX_TERMS


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.word)
def test_a_term_has_a_meaning_and_a_source(term: Term) -> None:
    assert term.group
    assert term.meaning not in ("", NONE)
    assert term.source not in ("", NONE)
    own = re.fullmatch(r"closloop, (\S+)", term.source)
    assert own is None or (ROOT / own[1]).is_file()
    assert all(CODE_NAME.fullmatch(name) for name in term.names)
    assert not any("`" in name for name in (*term.names, *term.prose))


def test_terms_are_in_alphabetical_order_in_their_groups() -> None:
    groups = list(dict.fromkeys(term.group for term in TERMS))
    order = [(groups.index(term.group), re.sub("[`_]", "", term.word).lower()) for term in TERMS]
    assert order == sorted(order)


def test_each_term_and_each_replaced_word_is_there_once() -> None:
    spellings = [word for term in TERMS for word in term.spellings]
    assert [word for word, count in Counter(spellings).items() if count > 1] == []
    replaced = [entry for term in TERMS for entry in term.replaced]
    assert [entry for entry, count in Counter(replaced).items() if count > 1] == []


def test_no_term_is_replaced_by_another() -> None:
    words = {word for term in TERMS for word in term.spellings}
    assert [entry for term in TERMS for entry in term.replaced if plain(entry) in words] == []
