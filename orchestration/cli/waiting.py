"""Says on a terminal what is being done, and how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show `what` with a spinner on a terminal; yield a function that takes how far it has come."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ...") as status:
        yield lambda text: status.update(f"{what}: {text}")
