"""A verb: `closloop greet`."""

from pathlib import Path


def greet(runs: Path = Path("runs")) -> None:
    """Say which campaigns ran here."""
    for folder in sorted(runs.glob("*/journal.jsonl")):
        print(f"{folder.parent.name} ran here")
