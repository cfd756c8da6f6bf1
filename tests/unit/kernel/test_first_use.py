"""The kernel is built when a campaign first needs it: what that says, lacks, and leaves."""

import json
import os
import signal
from pathlib import Path

import pytest

from closloop import plan, run
from orchestration.campaign.expand import load_campaign
from orchestration.core.builds import Build
from orchestration.core.errors import Interrupted, NotReadyError
from orchestration.kernel import build, first_use
from orchestration.run import launcher
from orchestration.run.checked import checked

TCP = """\
campaign: tcp
testbed: rlcc-7
tuners: [secn1]
traffic: [{kind: flow, src: h1, dst: h2, size: 64KB}]
repeats: 1
duration: 1ms
"""


class Noted:
    """A progress that is noted; a context manager, as the command line's is."""

    def __init__(self):
        self.phases = []

    def __enter__(self):
        return self

    def __exit__(self, *about):
        pass

    def phase(self, name):
        self.phases.append(name)

    def step(self, done, total):
        pass


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """A campaign with TCP, on a machine without a kernel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CLOSLOOP_KERNEL", raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tcp.yml"
    file.write_text(TCP)
    return file


def test_what_building_needs_and_is_missing_is_listed_and_nothing_is_written(
    campaign, tmp_path, monkeypatch
):
    monkeypatch.setattr(build.shutil, "which", lambda name: name not in ("bison", "xz") or None)
    with pytest.raises(NotReadyError) as caught:
        run(campaign)
    assert caught.value.message == "building a kernel needs bison, xz"
    assert caught.value.remedy == "apt-get install bison xz-utils"
    assert [path.name for path in tmp_path.iterdir()] == ["tcp.yml"]
    assert len(plan(campaign).trials) == 1  # planning needs no kernel


def test_it_takes_as_long_as_the_last_build_here(campaign, tmp_path):
    for key, at, build_s in (("old", "2026-01-01", 100.0), ("new", "2026-02-01", 300.0)):
        folder = tmp_path / "cache" / "closloop" / "kernel" / key
        folder.mkdir(parents=True)
        about = {"built_at": at, "build_s": build_s}
        (folder / "kernel.json").write_text(json.dumps(about))
    (made,) = first_use.kernel_to_build()
    assert (made.what, made.wall_s) == ("the virtual-time kernel", 300.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing_of_it(
    campaign, tmp_path, monkeypatch, request, number
):
    monkeypatch.setattr(build, "missing_tools", dict)

    def interrupted(self):
        (self.folder / "half").write_text("a source")
        os.kill(os.getpid(), number)

    monkeypatch.setattr(build.Archive, "newest", interrupted)
    # as at a terminal, also where a shell runs pytest in the background and ignores it
    at_start = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, at_start))
    former, noted = signal.getsignal(signal.SIGTERM), Noted()
    (made,) = first_use.kernel_to_build()
    with pytest.raises(Interrupted, match="interrupted while the kernel was built"):
        made.make(noted)
    assert noted.phases == ["looking for the newest source"]
    left = (tmp_path / "cache" / "closloop" / "kernel").iterdir()
    assert not [path for path in left if path.name != "lock"]
    assert signal.getsignal(signal.SIGTERM) == former


def test_what_unfinished_trials_need_is_built_before_the_first_one(campaign, tmp_path, monkeypatch):
    campaign.write_text(TCP + "backend: fluid\n")
    engine = launcher.backend("fluid")
    noted, done = Noted(), []

    def make(progress):
        progress.phase("compiling")
        done.append(list(Path("runs").glob("*/*/trial.json")))

    engine.to_build = lambda trials: [Build(f"a part for {len(trials)}", 90.0, make)]
    monkeypatch.setattr(launcher, "backend", lambda *_, **__: engine)
    loaded = checked(load_campaign(campaign))
    for _ in range(2):  # the second time nothing is left to do
        launcher.launch(loaded, tmp_path / "runs", open_progress=lambda: noted)
    assert noted.phases == ["building a part for 1, once, in about 1 min 30 s", "compiling"]
    assert done == [[]]
