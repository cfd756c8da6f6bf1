"""The command line's edge: exit codes, messages, what `closloop run` prints and leaves."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestration.cli import verbs

ROOT = Path(__file__).resolve().parents[3]
CAMPAIGN = """\
campaign: tiny
testbed: rlcc-7
backend: fluid
tuners: [secn1, secn2]
traffic:
  - {kind: poisson, workload: WebSearch, load: 0.3}
  - {kind: incast, fan_in: 4, size: 64KB, period: 500us}
repeats: 2
duration: 1ms
drain: 50ms
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def closloop(tmp_path, monkeypatch, capsys):
    """Run the command line in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOSLOOP_DEBUG", "")

    def run(*arguments):
        from orchestration.cli.main import main

        monkeypatch.setattr(sys, "argv", ["closloop", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return Done(end.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.yml"
    path.write_text(CAMPAIGN)
    return path


def tables(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


def test_every_verb_is_there(closloop):
    done = closloop("--help")
    assert done.returncode == 0
    for verb in ("run", "plan", "report", "inventory", "traffic", "kernel", "doctor", "bench"):
        assert f" {verb} " in done.stdout


@pytest.mark.parametrize("verb", verbs.verbs().values(), ids=lambda verb: verb.name)
def test_the_help_says_of_a_verb_what_the_verb_says_itself(verb):
    command = verbs.load(verb.name)
    assert command.name == verb.name
    assert " ".join(command.help.split("\n\n")[0].split()) == verb.help
    groups = ("inventory", "traffic", "import", "export")  # their commands have examples each
    assert "Example" in f"{command.epilog} {command.help}" or verb.name in groups


_FRAME = ("errors", "files", "plugins", "problems", "verb")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        (["--help"], set()),
        (["kernel", "--help"], {"kernel", "options", "terminal"}),
        (["sql", "--help"], {"sql", "options"}),
    ],
)
def test_help_loads_nothing_of_ours_but_the_verb_it_is_about(arguments, loaded):
    code = (
        "import sys, json\n"
        "from orchestration.cli.main import main\n"
        f"sys.argv = ['closloop', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print(json.dumps(list(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    ours = {"collectors", "inventory", "orchestration", "playbooks", "traffic", "tuners"}
    there = {name for name in json.loads(done.stderr) if name.partition(".")[0] in ours}
    # front doors, in which packages declare their verbs, and what these are found with
    doors = {name for name in there if name.count(".") < 2}
    core = {name for name in there if name.startswith("orchestration.core.")}
    assert core <= {f"orchestration.core.{name}" for name in _FRAME}
    cli = {f"orchestration.cli.{name}" for name in ("main", "verbs", *loaded)}
    assert there - doors - core == cli


def test_version(closloop):
    done = closloop("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("closloop ")


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["run"], ["run", "--jobs", "many", "x.yml"], ["run", "--jobs", "-1", "x"]],
)
def test_wrong_usage_ends_with_2(closloop, arguments):
    done = closloop(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""


def test_bad_input_ends_with_2_and_every_problem_and_nothing_is_written(closloop, file, tmp_path):
    file.write_text(CAMPAIGN.replace("0.3", "1.4").replace("secn2", "secm2"))
    done = closloop("run", str(file))
    assert done.returncode == 2
    assert "tiny.yml:4" in done.stderr
    assert "secm2" in done.stderr
    assert "tiny.yml:6" in done.stderr
    assert "1.4" in done.stderr
    assert "->" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yml"]


def test_a_missing_file_ends_with_2(closloop):
    done = closloop("run", "nowhere.yml")
    assert done.returncode == 2
    assert "nowhere.yml" in done.stderr


@pytest.mark.slow
def test_a_run_reports_and_resumes(closloop, file, tmp_path):
    done = closloop("run", str(file))
    assert done.returncode == 0, done.stderr
    assert "4 of 4" in done.stdout
    assert "slowdown" in done.stdout
    assert "[4/4]" in done.stderr
    assert "closloop report runs/tiny" in done.stderr
    assert (tmp_path / "runs" / "tiny" / "report.html").exists()

    done = closloop("run", str(file), "--no-report")
    assert done.returncode == 0
    assert "4 of them finished earlier" in done.stderr
    assert "slowdown" not in done.stdout


def test_json_is_all_that_is_on_standard_output(closloop, file):
    done = closloop("run", str(file), "--json", "--out", "elsewhere")
    said = json.loads(done.stdout)
    assert said["folder"] == "elsewhere/tiny"
    assert (said["trials"], said["finished"], said["failed"], said["invalid"]) == (4, 4, {}, {})


@pytest.mark.slow
def test_invalid_trials_end_with_1_and_are_named(closloop, file):
    file.write_text(CAMPAIGN.replace("drain: 50ms", "drain: 0ms"))
    done = closloop("run", str(file))
    assert done.returncode == 1
    assert "INVALID" in done.stderr
    assert "had not ended" in done.stdout


def test_failed_trials_end_with_1_and_say_why(closloop, file):
    tuner = "from tuners.base import BaseTuner\nclass Mine(BaseTuner):\n"
    tuner += "    def reset(self, testbed, seed):\n        raise ZeroDivisionError('its own')\n"
    (file.parent / "mine.py").write_text(tuner)
    file.write_text(re.sub(r"tuners: .*", "tuners: [{name: mine.py:Mine}]", CAMPAIGN))
    done = closloop("run", str(file))
    assert done.returncode == 1
    assert "FAILED" in done.stderr
    assert "its own" in done.stderr
    assert "0 of 2" in done.stdout


def test_a_backend_that_is_not_ready_ends_with_3(closloop, file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CLOSLOOP_KERNEL", "")
    monkeypatch.setenv("PATH", str(tmp_path))  # without what builds a kernel
    done = closloop("run", str(file), "--on", "emulated")
    assert done.returncode == 3
    assert "building a kernel needs gcc, make, flex, bison" in done.stderr
    assert "-> apt-get install bc bison flex gcc" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unexpected_error_is_short_unless_debugging(closloop, file, monkeypatch):
    from orchestration.run import launcher

    monkeypatch.setattr(launcher, "backend", lambda *_: 1 // 0)
    done = closloop("run", str(file))
    assert done.returncode == 1
    assert "unexpected ZeroDivisionError" in done.stderr
    assert "--debug" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(ZeroDivisionError):
        closloop("--debug", "run", str(file))


def test_a_folder_that_cannot_be_made_ends_with_3(closloop, file, tmp_path):
    (tmp_path / "runs").write_text("a file where a folder should be")
    done = closloop("run", str(file))
    assert done.returncode == 3
    assert "--out" in done.stderr


@pytest.mark.slow
def test_a_campaign_on_the_fake_backend_is_repeatable_bit_for_bit(file, tmp_path):
    """In other processes, with other hashes, with another number of trials side by side."""
    runs = [("one", "1", "0"), ("two", "2", "1")]
    for out, jobs, hash_seed in runs:
        code = "from orchestration.cli.main import main; main()"
        arguments = ["run", str(file), "--out", out, "--jobs", jobs, "--no-report"]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            timeout=240,
            check=False,
        )
        assert done.returncode == 0
    one, two = (tables(tmp_path / out) for out, _, _ in runs)
    assert len(one) == 4 * 6
    assert one == two
