"""The results page of a small campaign on the fluid backend, word for word.

`python tests/golden/test_papers_page.py` writes the expected page anew; read the difference.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestration.core.errors import InputError
from orchestration.papers.verbs import papers as app

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "papers"
CAMPAIGNS = FOLDER / "campaigns"
EXPECTED = FOLDER / "results.md"


def papers(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def make_page(folder: Path) -> str:
    """Run the campaign into `folder`, and return the page of it."""
    runs, page = folder / "runs", folder / "results.md"
    done = papers("run", "demo", "--campaigns", CAMPAIGNS, "--runs", runs, "--jobs", 1)
    assert done.exit_code == 0, done.output
    done = papers("results", "--runs", runs, "--claims", FOLDER / "claims.yml", "-o", page)
    assert done.exit_code == 0, done.output
    return page.read_text(encoding="utf-8")


def beside(folder: Path) -> dict[str, str]:
    """Return the files beside the page, as they are kept here."""
    return {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("results-headroom.svg", "results.json")
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("papers")
    return folder, make_page(folder)


def test_the_page_is_as_expected(ran: tuple[Path, str]) -> None:
    assert ran[1] == EXPECTED.read_text(encoding="utf-8")


def test_what_stands_beside_the_page_is_as_expected(ran: tuple[Path, str]) -> None:
    assert beside(ran[0]) == beside(FOLDER)


def test_a_page_can_be_renewed_without_the_runs_of_the_other_papers(
    ran: tuple[Path, str], tmp_path: Path
) -> None:
    for name in ("results.md", "results-headroom.svg", "results.json"):
        (tmp_path / name).write_bytes((ran[0] / name).read_bytes())
    page = tmp_path / "results.md"
    claims, nothing = FOLDER / "claims.yml", tmp_path / "runs"
    done = papers("results", "--paper", "Other", "--runs", nothing, "--claims", claims, "-o", page)
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8") == ran[1]
    assert beside(tmp_path) == beside(ran[0])


def test_the_same_run_folders_give_the_same_page(ran: tuple[Path, str]) -> None:
    assert make_page(ran[0]) == ran[1]


def test_the_list_counts_what_is_finished(ran: tuple[Path, str]) -> None:
    done = papers("list", "--campaigns", CAMPAIGNS, "--runs", ran[0] / "runs", "--jobs", 1)
    assert done.exit_code == 0, done.output
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("demo"))
    assert row[1:3] == ["72", "72"]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    done = papers("run", "deno", "--campaigns", CAMPAIGNS)
    assert isinstance(done.exception, InputError)
    assert "did you mean 'demo'?" in str(done.exception)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        EXPECTED.write_text(make_page(Path(scratch)), encoding="utf-8")
        for name, text in beside(Path(scratch)).items():
            (FOLDER / name).write_text(text, encoding="utf-8")
