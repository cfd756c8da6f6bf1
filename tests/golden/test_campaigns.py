"""Campaign files in, expanded trials or exact error text out: one test a file.

`python tests/golden/test_campaigns.py` writes the expected outputs anew; read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError

FOLDER = Path(__file__).parent / "campaigns"
FILES = sorted(path.name for path in FOLDER.glob("*.yml"))
PLAN, ERROR = ".plan.json", ".err"


def outcome(name: str) -> tuple[str, str]:
    """Return the suffix and the text of what a campaign file leads to, read from its folder."""
    try:
        campaign = load_campaign(name)
    except InputError as error:
        return ERROR, f"{error}\n"
    trials = [{"id": trial.id, **trial.to_json()} for trial in campaign.trials]
    return PLAN, json.dumps(trials, indent=1) + "\n"


@pytest.mark.parametrize("name", FILES)
def test_campaign_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    suffix, text = outcome(name)
    assert text == Path(name).with_suffix(suffix).read_text(encoding="utf-8")


def test_every_expectation_has_its_file() -> None:
    expected = {path.name for path in FOLDER.iterdir() if path.name.endswith((PLAN, ERROR))}
    files = [name.removesuffix(PLAN).removesuffix(ERROR) + ".yml" for name in expected]
    assert sorted(files) == FILES


def write_expectations() -> None:
    """Write what every file leads to now."""
    os.chdir(FOLDER)
    for old in (*FOLDER.glob(f"*{PLAN}"), *FOLDER.glob(f"*{ERROR}")):
        old.unlink()
    for name in FILES:
        suffix, text = outcome(name)
        Path(name).with_suffix(suffix).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_expectations()
