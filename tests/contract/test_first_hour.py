"""The first hour's tuner and campaigns, as docs/first-hour.md has them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from closloop import check_tuner
from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
(TUNER,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# The commands that make a campaign's file, of which one goes on in a second line.
COPIES = re.findall(r"^ {4}(sed (?:\\\n|[^\n])*)", PAGE, re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the examples and the tuner of the page."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "examples" / "follow.py").write_text(TUNER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tuner_holds_to_what_every_tuner_must(folder):
    assert not check_tuner("examples/follow.py:Follow", load_testbed("graphcc"))
    assert len([line for line in TUNER.partition("@dataclass")[2].split("\n") if line]) <= 10


@pytest.mark.parametrize(
    ("command", "name", "arms"),
    [
        (COPIES[0], "lighter", ["secn1", "best-static", "acc", "placebo-acc"]),
        (COPIES[1], "mine", ["secn1", "best-static", "follow"]),
    ],
)
def test_the_copies_are_campaigns(folder, command, name, arms):
    subprocess.run(["sh", "-c", command], check=True)
    campaign = load_campaign(f"examples/{name}.yml")
    assert campaign.name == name
    assert [cell["tuner"] for cell in campaign.cells] == arms
    made = re.findall(r"closloop init (\S+\.yml)", PAGE)
    copies = ["examples/lighter.yml", "examples/mine.yml", "examples/quickstart.yml"]
    for _, file in re.findall(r"closloop (run|plan) (\S+)", PAGE):
        assert file in [*copies, *made]
