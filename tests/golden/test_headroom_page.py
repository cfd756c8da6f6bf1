"""The map of a small campaign on the fluid backend, word for word.

`python tests/golden/test_headroom_page.py` writes the expected files anew; read the difference.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestration.cli.main import app

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "headroom"
FILES = ("headroom.md", "headroom.json", "headroom.svg", "printed.txt")


def called(name: str, *arguments: object) -> Result:
    return CliRunner().invoke(app, [name, *map(str, arguments)], env={"COLUMNS": "120"})


def make(folder: Path) -> dict[str, str]:
    """Run the campaign into `folder`; return what the command writes, and prints."""
    done = called("run", FOLDER / "campaign.yml", "--out", folder, "--jobs", 1, "--no-report")
    assert done.exit_code == 0, done.output
    asked = ("--metric", "slowdown_mean", "--metric", "mice_p95", "--metric", "long_mean")
    done = called("headroom", folder / "demo", *asked, "-o", folder / "headroom.md")
    assert done.exit_code == 0, done.output
    assert "left out, because it is not one static setting: amt" in done.stderr
    written = {name: (folder / name).read_text(encoding="utf-8") for name in FILES[:-1]}
    return written | {FILES[-1]: done.stdout}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("headroom")
    return folder, make(folder)


@pytest.mark.parametrize("name", FILES)
def test_the_map_is_as_expected(ran: tuple[Path, dict[str, str]], name: str) -> None:
    assert ran[1][name] == (FOLDER / name).read_text(encoding="utf-8")


def test_json_is_what_is_written_beside_the_page(ran: tuple[Path, dict[str, str]]) -> None:
    asked = ("--metric", "slowdown_mean", "--metric", "mice_p95", "--metric", "long_mean")
    done = called("headroom", ran[0] / "demo", *asked, "--json")
    assert json.loads(done.stdout) == json.loads(ran[1]["headroom.json"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in make(Path(scratch)).items():
            (FOLDER / name).write_text(text, encoding="utf-8")
