"""Renews the parts of a results page that speak of some papers only, and keeps the others' parts.

So a page can follow one paper's new trials on a machine that does not have all the others'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

_BLOCK = "\n## "
ANSWER = "The answer"
_ROW = re.compile(
    r"\| (?!paper \||--- \|)(?P<paper>[^|]*) \| (?P<claim>[^|]*) \| .*\*\*(?P<verdict>.*)\*\* \|$"
)
_SENTENCE = re.compile(r"- (?P<paper>.*?)'s experiments: ")


def renewed(
    former: str, fresh: str, papers: Collection[str], tally: Callable[[Sequence[str]], str]
) -> str:
    """Return `fresh` with the former page's parts for all papers but `papers`.

    `tally` says what the verdicts of all headlines come to. A section that the former page does not
    have is that of `fresh`.
    """
    kept = _blocks(former)
    parts = []
    for title, block in _blocks(fresh).items():
        paper, of_paper, _ = title.partition(": ")
        if title == ANSWER and title in kept:
            parts.append(_answer(kept[title], block, papers, tally))
        elif of_paper and paper not in papers and title in kept:
            parts.append(kept[title])
        else:
            parts.append(block)
    return _BLOCK.join(parts)


def _blocks(page: str) -> dict[str, str]:
    """Return the parts of a page by their titles, the first one's being its first line."""
    return {block.partition("\n")[0]: block for block in page.split(_BLOCK)}


def _answer(
    former: str, fresh: str, papers: Collection[str], tally: Callable[[Sequence[str]], str]
) -> str:
    rows = {_row_key(line): line for line in former.splitlines() if _ROW.match(line)}
    lines: list[str] = []
    verdicts: list[str] = []
    said = [line for line in fresh.splitlines() if not _SENTENCE.match(line)]
    for line in said:
        if (found := _ROW.match(line)) is not None:
            chosen = line if found["paper"] in papers else rows.get(_row_key(line), line)
            matched = _ROW.match(chosen)
            verdicts.append(matched["verdict"] if matched else "")
            lines.append(chosen)
        else:
            lines.append(line)
    of_papers = [line for line in fresh.splitlines() if _of(line, papers, wanted=True)]
    of_others = [line for line in former.splitlines() if _of(line, papers, wanted=False)]
    text = "\n".join(line for line in lines if not line.startswith("Against ")).rstrip()
    text = re.sub(r"^Of the papers' .*$", lambda _: tally(verdicts), text, count=1, flags=re.M)
    return "\n".join([text, *_sentences([*of_others, *of_papers]), ""])


def _row_key(line: str) -> tuple[str, str]:
    found = _ROW.match(line)
    return (found["paper"], found["claim"]) if found else ("", "")


def _of(line: str, papers: Collection[str], *, wanted: bool) -> bool:
    found = _SENTENCE.match(line)
    return found is not None and (found["paper"] in papers) == wanted


def _sentences(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", "Against the best fixed setting and against chance:", "", *lines)
