"""docs/decisions: few short records, all of them binding, and every reference leads to one.

A record that no longer binds is deleted or merged into another; its references go with it.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "decisions"
MAX_RECORDS = 40
MAX_WORDS = 249
FOLDERS = (
    "closloop",
    "collectors",
    "docs",
    "examples",
    "inventory",
    "orchestration",
    "playbooks",
    "scripts",
    "tests",
    "traffic",
    "tuners",
)
SUFFIXES = {".c", ".cc", ".h", ".in", ".md", ".py", ".sh", ".toml", ".yml"}
FILE_NAME = re.compile(r"\d{4}(-[a-z0-9]+)+\.md")
# "decision 36", and with a link the file's name.
MENTION = re.compile(r"(?<![-\w])[Dd]ecision (\d+)\b(?:\]\([^)\s]*?decisions/([^)\s#]+))?")
PATH = re.compile(r"decisions/(\d[\w.-]*\.md)")
LINK = re.compile(r"\]\(([^)\s#]*decisions/[^)\s#]+)")
# A path of the project in backticks.
PROJECT_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`")


def number_of(name: str) -> int:
    return int(name.split("-")[0])


def dangling(text: str, names: Mapping[int, str]) -> list[str]:
    """Return the references of `text` that lead to no record, or to another than they say."""
    missing = [name for name in PATH.findall(text) if name not in names.values()]
    for number, name in MENTION.findall(text):
        if int(number) not in names or (name and number_of(name) != int(number)):
            missing.append(f"decision {number}")
    return missing


def records() -> list[Path]:
    return sorted(RECORDS.iterdir())


def sources() -> Iterator[Path]:
    for path in ROOT.iterdir():
        if path.suffix in SUFFIXES:
            yield path
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and path != Path(__file__).resolve():
                yield path


def test_there_are_few_records() -> None:
    names = [path.name for path in records()]
    assert [name for name in names if not FILE_NAME.fullmatch(name)] == []
    assert len({number_of(name) for name in names}) == len(names)
    assert len(names) <= MAX_RECORDS, "delete what no longer binds, or merge what belongs together"


@pytest.mark.parametrize("path", records(), ids=lambda path: path.name[:4])
def test_a_record_is_short_and_names_what_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(rf"# {number_of(path.name)}\. \S", text), "its title begins with its number"
    assert len(text.split()) <= MAX_WORDS
    assert [name for name in PROJECT_PATH.findall(text) if not (ROOT / name).exists()] == []


def test_every_reference_leads_to_a_record() -> None:
    names = {number_of(path.name): path.name for path in records()}
    found = {}
    for path in sources():
        if missing := dangling(path.read_text(encoding="utf-8"), names):
            found[str(path.relative_to(ROOT))] = missing
    assert found == {}


def test_every_link_in_a_page_leads_to_its_file() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in sources()
        if path.suffix == ".md" and not path.is_relative_to(ROOT / "tests")
        for target in LINK.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see decision 3 and [decision 3](decisions/0003-queues.md), `--decisions 40`", []),
        ("# see decision 4", ["decision 4"]),
        ("[why](../decisions/0003-former-name.md)", ["0003-former-name.md"]),
        ("[Decision 3](decisions/0005-marks.md)", ["decision 3"]),
        (" * (see docs/decisions/0009-gone.md).", ["0009-gone.md"]),
    ],
)
def test_a_dangling_reference_is_found(text: str, missing: list[str]) -> None:
    assert dangling(text, {3: "0003-queues.md", 5: "0005-marks.md"}) == missing
