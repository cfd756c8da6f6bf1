"""Renews the parts of a results page that speak of one paper only, and keeps the others' parts.

So a page can follow one paper's new trials on a machine that does not have all the others'. What
the page opens with is renewed from data: see `page_data`.
"""

from __future__ import annotations

_BLOCK = "\n## "


def renewed(former: str, fresh: str, paper: str) -> str:
    """Return `fresh` with the former page's sections of all papers but one.

    Sections that the former page does not have are those of `fresh`, as is what it begins with.
    """
    kept = _blocks(former)
    parts = []
    for title, block in _blocks(fresh).items():
        owner, of_paper, _ = title.partition(": ")
        head = title.startswith("# ")
        chosen = bool(of_paper) and not head and owner != paper and title in kept
        parts.append(kept[title] if chosen else block)
    return _BLOCK.join(parts)


def _blocks(page: str) -> dict[str, str]:
    """Return the parts of a page by their titles, the first one's being its first line."""
    return {block.partition("\n")[0]: block for block in page.split(_BLOCK)}
