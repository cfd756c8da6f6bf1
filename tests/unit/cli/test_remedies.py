"""Remedies that name a command are followed to the letter, and then it works."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import Ended, closloop_in_process

CAMPAIGN = """
campaign: tiny
testbed: graphcc
backend: {backend}
tuners: [secn1, secn2]
traffic:
  - {{kind: incast, fan_in: 4, size: 64KB, period: 1ms}}
repeats: 1
duration: 2ms
"""


def run(folder: Path, *words: str, code: int = 0) -> Ended:
    """Give a command of closloop in a folder."""
    done = closloop_in_process(*words, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def remedies(done: Ended) -> list[str]:
    """Return the commands that an error tells the user to give."""
    told = "".join(re.findall(r"  -> .*", done.stderr))
    return re.findall(r"`([^`]+)`", told) or re.findall(r"closloop .*?(?=;|,|$)", told)


def obey(folder: Path, command: str, **filled: str) -> None:
    """Give a command that a remedy named, with `filled` in place of its words in capitals."""
    words = [filled.get(word, word) for word in shlex.split(command)]
    if words[0] == "closloop":
        out = words.index(">") if ">" in words else len(words)
        done = run(folder, *words[1:out])
        if out < len(words):
            (folder / words[-1]).write_text(done.stdout)
    else:
        subprocess.run(words, cwd=folder, check=True, timeout=60)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a folder with tiny.yml and its run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yml").write_text(CAMPAIGN.format(backend="fluid"))
    run(folder, "run", "tiny.yml", "--no-report")
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "here"))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def broken(path: Path) -> None:
    path.write_text('{"spec')


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("flows.parquet", truncated),
        ("flows.parquet", Path.unlink),
        ("trial.json", broken),
        ("testbed.json", broken),
    ],
)
def test_a_damaged_file_of_a_trial(folder, file, damage):
    trial, other = sorted(path.parent for path in folder.glob("runs/tiny/*/trial.json"))
    damage(trial / file)
    before = (other / "trial.json").stat().st_mtime_ns
    said = run(folder, "report", "runs/tiny", code=2)
    (command,) = remedies(said)
    assert command == f"rm -r runs/tiny/{trial.name}"
    obey(folder, command)
    run(folder, "plan", "tiny.yml")
    run(folder, "run", "tiny.yml")
    run(folder, "report", "runs/tiny")
    assert (other / "trial.json").stat().st_mtime_ns == before


@pytest.mark.kernel
@pytest.mark.parametrize("choice", [0, 1, 2])
def test_a_look_at_the_fluid_model_and_then_the_real_run(tmp_path, choice):
    (tmp_path / "tiny.yml").write_text(CAMPAIGN.format(backend="emulated"))
    run(tmp_path, "run", "tiny.yml", "--on", "fluid", "--no-report")
    commands = remedies(run(tmp_path, "run", "tiny.yml", "--no-report", code=2))
    assert len(commands) == 3
    obey(tmp_path, commands[choice])
    place = tmp_path / ("runs-emulated" if choice == 1 else "runs")
    (trial, _) = place.glob("tiny/*/trial.json")
    ran_on = json.loads(trial.read_text())["spec"]["backend"]
    assert ran_on == ("fluid" if choice == 0 else "emulated")
    run(tmp_path, "report", str(place / "tiny"), "--no-html")


def test_two_runs_are_compared(folder):
    (command,) = remedies(run(folder, "compare", "runs/tiny", code=2))
    run(folder, "run", "tiny.yml", "--out", "again", "--no-report")
    obey(folder, command, A="runs/tiny", B="again/tiny")


def test_what_has_not_run_is_run(tmp_path):
    (tmp_path / "tiny.yml").write_text(CAMPAIGN.format(backend="fluid"))
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (command,) = remedies(run(tmp_path, "report", "runs/tiny", code=2))
    obey(tmp_path, command, CAMPAIGN="tiny.yml")
    run(tmp_path, "report", "runs/tiny")


def test_a_calibration_is_made_anew(tmp_path):
    (tmp_path / "rack.json").write_text("{}")
    words = ("calibrate", "graphcc", "--on", "fluid", "--like", "rack.json")
    (command,) = remedies(run(tmp_path, *words, code=2))
    obey(tmp_path, command, TESTBED="graphcc", BACKEND="fluid", FILE="rack.json")
    run(tmp_path, *words)


def test_what_was_not_searched_is_searched(tmp_path):
    text = CAMPAIGN.format(backend="fluid")
    tuners = "[secn1, {name: static, from: best.yml}]"
    (tmp_path / "tiny.yml").write_text(text.replace("[secn1, secn2]", tuners))
    (command,) = remedies(run(tmp_path, "plan", "tiny.yml", code=2))
    assert command == "closloop search tiny.yml -o best.yml"
    obey(tmp_path, f"{command} --settings 3 --rounds 0 --verify 2")
    run(tmp_path, "plan", "tiny.yml")


@pytest.mark.skipif(not shutil.which("bpf-gcc"), reason="no bpf-gcc: apt-get install gcc-bpf")
def test_a_policy_is_deployed_and_what_is_deployed_is_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    host = "host: {congestion_control: {program: 'deployed:mine', parameters: [40000]}}\n"
    text = CAMPAIGN.format(backend="emulated").replace("graphcc", "rlcc-7") + host
    (tmp_path / "tiny.yml").write_text(text)
    (tmp_path / "my_policy.c").write_text(POLICY)
    (command,) = remedies(run(tmp_path, "plan", "tiny.yml", code=2))
    obey(tmp_path, command)
    run(tmp_path, "plan", "tiny.yml")
    run(tmp_path, "deploy", "--undo", "mine")
    (command,) = remedies(run(tmp_path, "deploy", "--undo", "mine", code=2))
    obey(tmp_path, command)


POLICY = """
#include "policy.h"

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
        flow->rate_bps = p[0] * 1000ULL;
}

CL_POLICY(mine, 1, 0);
"""


@pytest.mark.parametrize(
    "words",
    [
        "doctor",
        "import --help",
        "inventory list",
        "inventory show graphcc",
        "rack status",
        "train acc --help",
    ],
)
def test_what_only_shows_something_does_so(tmp_path, words):
    assert run(tmp_path, *words.split(), code=0).stdout
