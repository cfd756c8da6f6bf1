import json

import pytest
from typer.testing import CliRunner

from orchestration.cli import doctor
from orchestration.cli.main import app
from orchestration.core.errors import NotReadyError


@pytest.fixture
def no_kernel(monkeypatch, tmp_path):
    """A machine without a kernel, and without a C compiler."""

    def no_compiler():
        raise NotReadyError("no C compiler was found", "apt-get install gcc")

    monkeypatch.setattr(doctor, "load_engine", no_compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CLOSLOOP_KERNEL", raising=False)


def test_a_machine_without_kernel_and_compiler_is_told_how_to_get_them(no_kernel):
    result = CliRunner().invoke(app, ["doctor", "--json"])
    said = json.loads(result.stdout)
    assert result.exit_code == 3
    assert not said["ready"]
    kernel = next(f for f in said["findings"] if f["what"] == "virtual-time kernel")
    assert (kernel["state"], kernel["found"][:9]) == ("note", "not built")
    assert "closloop kernel build" in kernel["remedy"]
    engine = next(f for f in said["findings"] if f["what"] == "packet engine")
    assert (engine["state"], engine["remedy"]) == ("missing", "apt-get install gcc")


def test_the_table_says_the_same(no_kernel):
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert "not ready" in result.stdout
    assert "memory" in result.stdout


def test_an_extra_in_a_remedy_is_shown(monkeypatch):
    found = doctor.Finding("ns-3", "note", "not installed", "pip install 'closloop[sim]'")
    monkeypatch.setattr(doctor, "examine", lambda **_: [found])
    assert "closloop[sim]" in CliRunner().invoke(app, ["doctor"]).stdout
