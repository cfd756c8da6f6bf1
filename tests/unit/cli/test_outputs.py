"""No verb overwrites what it reads, under any name, and a failure leaves the former output."""

import hashlib
import os
import shutil
from pathlib import Path

import click
import pytest

from orchestration.cli.verbs import load, verbs
from orchestration.core import files
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.outputs import check_outputs, write_output
from orchestration.policies.compile import TARGETS, compile_model
from tests.unit.compiled_policies import RECORDED

ROOT = Path(__file__).resolve().parents[3]


def digests(folder):
    """Return the bytes' digest of each file below a folder, partial ones too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def called(name, *arguments):
    """Run a verb in this process, without the mapping of errors to exit codes."""
    return load(name).main([str(one) for one in arguments], name, standalone_mode=False)


@pytest.fixture
def place(campaign, tmp_path, monkeypatch):
    """Go to a folder with inputs of every kind: two runs, campaigns, a testbed, models."""
    for name in ("a", "b"):
        shutil.copytree(campaign, tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "campaign.yml").write_text("campaign: a\n")
    trial = sorted((tmp_path / "runs/a").glob("*/trial.json"))[0].parent
    trial.rename(trial.with_name("trial"))
    shutil.copy(RECORDED, tmp_path / "model.json")
    shutil.copy(RECORDED, tmp_path / "mine.policy.json")
    shutil.copy(ROOT / "inventory/testbeds/graphcc.yml", tmp_path / "rack.yml")
    (tmp_path / "campaign.yml").write_text(
        "campaign: mine\ntestbed: ./rack.yml\nbackend: fluid\ntuners: [secn1]\nrepeats: 1\n"
        "traffic: [{kind: poisson, workload: WebSearch, load: 0.3}]\nduration: 1ms\n"
    )
    (tmp_path / "network.safetensors").write_bytes(b"weights")
    (tmp_path / "claims.json").write_text("{}")
    (tmp_path / "causes.md").write_text("why")
    (tmp_path / "replay.inputs").mkdir()
    (tmp_path / "replay.inputs/flows.csv").write_text(
        "start_ns,src,dst,bytes,class\n0,h1,h2,1000,0\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Each verb that reads and writes files, with an output that is an input, or derived to be one.
OVERWRITING = {
    "compile": ["model.json", "-o", "model.json"],
    "compile, by a folder that it would make": ["model.json", "-o", "new/../model.json"],
    "compile, what stands beside": ["mine.policy.json", "-o", "mine.c"],
    "distill": ["network.safetensors", "-o", "network.safetensors"],
    "distill, drawn": ["causes.md", "-o", "causes.json"],
    "search": ["campaign.yml", "-o", "campaign.yml"],
    "search, a file that the campaign names": ["campaign.yml", "-o", "rack.yml"],
    "sql": ["runs/a", "from flows", "-o", "runs/a/campaign.yml", "--format", "csv"],
    "sql, another's": ["runs/a", "from flows", "-o", "link.csv"],
    "compare": ["runs/a", "runs/b", "--out", "runs/b/campaign.yml"],
    "compare, a trial's": ["runs/a", "runs/b", "--out", "runs/a/trial/trial.json"],
    "headroom, data": ["runs/a", "-o", "runs/a/trial/trial.md"],
    "headroom, twice": ["runs/a", "-o", "new.json"],
    "report, an index": ["runs/a", "runs/b", "-o", "runs/a/trial/trial.html"],
    "papers": ["results", "--runs", "runs", "--claims", "claims.json", "-o", "claims.md"],
    "papers, twice": ["results", "--runs", "runs", "-o", "new.json"],
    "fidelity": ["--campaigns", ".", "-o", "causes.md"],
    "fidelity, a campaign": ["--campaigns", ".", "-o", "campaign.yml"],
    "bench": ["run", "marking", "--json", "new.md", "--markdown", "./new.md"],
    "init": ["rack.yml", "--testbed", "rack.yml", "--yes", "--force"],
    "init, what stands beside": ["x.yml", "--testbed", "x-testbed.yml", "--yes", "--force",
                                 "--compare", "ecn-roce"],
    "replay": ["replay.inputs/flows.csv", "--testbed", "graphcc", "--on", "fluid", "--name",
               "replay", "--tuner", "secn1", "--out", ".", "--plan-only"],
}  # fmt: skip
LEARNING = {
    "train, from its own": ["acc", "--episodes", "1", "--scenario", "campaign.yml", "--on",
                            "fluid", "--init", "checkpoint.safetensors", "--out", "."],
    "train, anew": ["acc", "--episodes", "1", "--scenario", "campaign.yml", "--on", "fluid",
                    "--out", ".", "--fresh"],
}  # fmt: skip


def refused(arguments, name, place):
    before = digests(place)
    with pytest.raises(InputError) as error:
        called(name.partition(",")[0], *arguments)
    assert digests(place) == before
    assert all(problem.remedy for problem in error.value.problems)
    assert "read" in str(error.value) or "written twice" in str(error.value)


@pytest.mark.parametrize("name", OVERWRITING)
def test_no_verb_overwrites_what_it_reads(name, place):
    os.link("runs/a/trial/trial.json", "link.csv")
    os.symlink("rack.yml", "x-testbed.yml")
    refused(OVERWRITING[name], name, place)


@pytest.mark.parametrize("name", LEARNING)
def test_a_training_keeps_what_it_reads(name, place):
    pytest.importorskip("torch")
    shutil.copy("network.safetensors", "checkpoint.safetensors")
    refused(LEARNING[name], name, place)


def test_only_a_trainings_folder_is_thrown_away(place):
    pytest.importorskip("torch")
    before = digests(place)
    with pytest.raises(InputError, match=r"runs: is no training's folder"):
        called("train", "acc", "--episodes", "1", "--scenario", "campaign.yml", "--on", "fluid",
               "--out", "runs", "--fresh")  # fmt: skip
    assert digests(place) == before


# Options that name what is written, of the verbs above; and of those that write new files only,
# or into run folders, whose own checks keep them (test_runner_run).
NEW_ONLY = {
    "import", "export", "inventory", "calibrate", "kernel", "run", "plan", "whatif", "credit",
    "pull", "rack", "cluster", "signals",
}  # fmt: skip
WRITES = {"--output", "-o", "--out", "--markdown", "--write"}


def leaves(command, path):
    if isinstance(command, click.Group) or hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from leaves(one, (*path, name))
    else:
        yield path, command


def test_every_verb_that_writes_files_is_among_those_that_were_tried():
    writing = set()
    for verb in verbs().values():
        for path, command in leaves(load(verb.name), (verb.name,)):
            flags = {flag for option in command.params for flag in option.opts}
            if flags & WRITES:
                writing.add(path[0])
    tried = {name.partition(",")[0] for name in (*OVERWRITING, *LEARNING)}
    assert writing - NEW_ONLY == tried & writing
    assert not tried & NEW_ONLY


@pytest.mark.parametrize("how", ["same", "spelling", "new folder", "symbolic", "hard"])
def test_a_path_is_known_by_what_it_leads_to(how, tmp_path):
    model = tmp_path / "model.json"
    model.write_text("{}")
    other = {
        "same": model,
        "spelling": tmp_path / "x" / ".." / "model.json",
        "new folder": tmp_path / "new" / ".." / "model.json",
        "symbolic": tmp_path / "link",
        "hard": tmp_path / "link",
    }[how]
    (tmp_path / "x").mkdir()
    if how == "symbolic":
        other.symlink_to("model.json")
    if how == "hard":
        os.link(model, other)
    with pytest.raises(InputError, match=r"which is read: it would be overwritten\n  -> choose"):
        check_outputs([other], [model])
    with pytest.raises(InputError, match=r"would be written twice"):
        check_outputs([other, model, tmp_path / "new"], [])
    with pytest.raises(InputError, match=r"has .* in it, which is read"):
        check_outputs([tmp_path], [model if how == "new folder" else other])
    check_outputs([tmp_path / "other", "/dev/null", "/dev/null"], [model, tmp_path / "none"])


def test_a_failure_leaves_the_former_output(tmp_path, monkeypatch):
    path, link = tmp_path / "page.md", tmp_path / "link.md"
    link.symlink_to("page.md")
    write_output(link, "former")
    monkeypatch.setattr(
        os, "write", lambda handle, data: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(NotReadyError, match="cannot be written: full"):
        write_output(link, "later")
    monkeypatch.undo()
    assert path.read_text() == "former"
    assert link.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.md", "page.md"]
    write_output(Path("/dev/null"), "x" * files.os.sysconf("SC_PAGE_SIZE"))
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_stays_beside_what_is_compiled_of_it(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(RECORDED, "model.json")
    made = compile_model(Path("model.json"), target)
    again = compile_model(Path("model.json"), target)
    assert made == again
    assert made.files[-1].name == "model.policy.json"
    assert Path("model.json").read_bytes() == RECORDED.read_bytes()


def test_a_file_written_by_hand_is_not_replaced_under_the_default_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    shutil.copy(RECORDED, "in/model.json")
    Path("model.c").write_text("mine")
    with pytest.raises(InputError, match=r"model\.c: exists, and is not as `closloop comp"):
        compile_model(Path("in/model.json"), "c")
    assert Path("model.c").read_text() == "mine"
    compile_model(Path("in/model.json"), "c", Path("model.c"))
    # an earlier version's name of what stands beside
    Path("model.policy.json").rename("model.json")
    compile_model(Path("in/model.json"), "c")
