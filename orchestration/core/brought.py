"""A user's files on a machine that they were brought to: below a folder, with their own paths.

A trial names files by their paths on the machine that planned it. On another one they stand below
the folder that $CLOSLOOP_BROUGHT names, which is none of the trial: it keeps its id and its record.
"""

from __future__ import annotations

import os

BROUGHT = "CLOSLOOP_BROUGHT"


def here(path: str) -> str:
    """Return where an absolute path's file is on this machine; other paths as they are.

    A relative one needs nothing: it starts at the working folder, which was brought as well.
    """
    root = os.environ.get(BROUGHT, "")
    brought = root + path
    return brought if root and os.path.isabs(path) and os.path.exists(brought) else path
