"""The fidelity page, of a backend against itself."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestration.cli.main import app
from orchestration.core.errors import InputError

SCENARIOS = Path(__file__).resolve().parents[3] / "examples" / "fidelity"


def write_page(folder, *more):
    arguments = ["fidelity", "--reference", "fluid", "--against", "fluid", "--repeats", "2"]
    arguments += ["--campaigns", str(SCENARIOS), "--runs", str(folder / "runs")]
    arguments += ["-o", str(folder / "page.md"), *more]
    return CliRunner().invoke(app, arguments)


@pytest.mark.slow
def test_a_backend_agrees_with_itself(tmp_path):
    result = write_page(tmp_path, "idle-path", "one-flow")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.md").read_text()
    assert "| idle path h1 to h2, 1 B, round trip | 4.000 us | 4.000 us | +0.00% |" in page
    assert "| one flow of 50 MB, goodput | 23.481 Gbit/s | 23.481 Gbit/s | +0.00% |" in page
    assert page.count("Equivalent: 17 of 17 metrics, identical in every pair.") == 2
    assert "does not hold" not in page
    # given again, nothing is run
    assert write_page(tmp_path, "idle-path", "one-flow").exit_code == 0


@pytest.mark.slow
def test_the_page_has_a_note_on_causes(tmp_path):
    campaigns = tmp_path / "campaigns"
    campaigns.mkdir()
    (campaigns / "idle-path.yml").write_text((SCENARIOS / "idle-path.yml").read_text())
    (campaigns / "causes.md").write_text("It is the weather.\n")
    result = write_page(tmp_path, "idle-path", "--campaigns", str(campaigns))
    assert result.exit_code == 0, result.output
    assert "It is the weather." in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["idlepath"], "did you mean 'idle-path'"),
        (["--against", "imported"], "imported"),
        (["--campaigns", "nowhere"], "name the folder with --campaigns"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, more, expected):
    result = write_page(tmp_path, *more)
    assert isinstance(result.exception, InputError)
    assert expected in str(result.exception)
