"""`closloop traffic`: what it prints."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestration.cli.traffic import app
from orchestration.core.errors import InputError


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args), env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_list_has_a_line_a_workload_on_80_columns():
    lines = {line.split()[0]: line.split() for line in run("list").splitlines() if line.strip()}
    assert lines["WebSearch"][1:4] == ["1.7MB", "73.1KB", "23.3MB"]
    assert " ".join(lines["WebSearch"][4:]) == "54% / 1.0% 43% / 64% 3.0% / 35%"
    assert " ".join(lines["FB_Hadoop"][-3:]) == "0% / 0%"
    assert {"AliStorage2019", "DataMining"} <= set(lines)


def test_show_draws_the_distribution_and_names_its_source():
    output = run("show", "websearch")
    assert "30MB" in output
    assert "97.00%" in output
    assert "█" in output
    assert "SIGCOMM 2010" in output


def test_show_json_is_for_programs():
    shown = json.loads(run("show", "WebSearch", "--json"))
    assert shown["mean_bytes"] == 1_711_250
    assert shown["points"][1] == {"bytes": 10_000, "cdf": 0.15}
    assert sum(c["share_of_flows"] for c in shown["classes"]) == pytest.approx(1)
    assert sum(c["share_of_bytes"] for c in shown["classes"]) == pytest.approx(1)


def test_a_users_table_is_checked(tmp_path: Path):
    table = tmp_path / "mine.csv"
    table.write_text("bytes,cdf\n# [bold]ours\n0,0\n500,0.9\n")
    with pytest.raises(InputError, match=r"mine.csv:4: the last probability is 0.9"):
        run("show", str(table))
    table.write_text("# [bold]ours\nbytes,cdf\n0,0\n500,1\n")
    assert "[bold]ours" in run("show", str(table))
