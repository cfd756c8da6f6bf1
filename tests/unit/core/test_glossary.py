"""docs/glossary.md: few terms, each once, with a meaning and a source."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAX_TERMS = 120
HEADER = "| word | meaning | source |"
NONE = "–"


@dataclass(frozen=True)
class Term:
    """A row of the glossary."""

    group: str
    word: str
    meaning: str
    source: str

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
            found.append(Term(group, *line.strip("| ").split(" | ")))
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


def test_terms_are_in_alphabetical_order_in_their_groups() -> None:
    groups = list(dict.fromkeys(term.group for term in TERMS))
    order = [(groups.index(term.group), re.sub("[`_]", "", term.word).lower()) for term in TERMS]
    assert order == sorted(order)


def test_each_term_is_there_once() -> None:
    spellings = [word for term in TERMS for word in term.spellings]
    assert [word for word, count in Counter(spellings).items() if count > 1] == []
