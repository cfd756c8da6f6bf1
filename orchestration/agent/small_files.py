"""Reads small text files and folders of a device; what cannot be read counts as empty."""

from __future__ import annotations

import os
import re

_MAX_CHARACTERS = 1 << 20


def text(path: str) -> str:
    """Return a file's text without white space around it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARACTERS).strip()
    except OSError:
        return ""


def listed(folder: str) -> list[str]:
    """Return the names in a folder, sorted."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def fields(text: str, separator: str) -> dict[str, str]:
    """Return `name<separator>value` lines as a dict, without quotes around the values."""
    parts = (line.partition(separator) for line in text.splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, _, value in parts}


def leading_int(text: str) -> int:
    """Return the number at the beginning of a text, -1 if there is none."""
    match = re.match(r"-?[0-9]{1,18}", text)
    return int(match.group()) if match else -1
