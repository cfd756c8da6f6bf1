"""Campaigns and trainings on three nodes of a Ray cluster, which are processes of this machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cluster_trials as trials
import pytest

from inventory.files import load_testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError, NotReadyError
from orchestration.run.folder import read_journal
from orchestration.run.launcher import default_jobs, run_campaign

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]
STORE_BYTES = 100 << 20


def _parent(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""


class Listener:
    """Remembers which trials have finished, and does something at each."""

    def __init__(self, at=lambda count: None):
        self.finished_ids = []
        self._at = at

    def finished(self, trial, result):
        self.finished_ids.append(trial.id)
        self._at(len(self.finished_ids))

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Nodes:
    """A head and two more nodes, of one CPU each."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        about = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **about})
        self.address = self._cluster.address
        self.others = [self._added() for _ in range(2)]

    @property
    def _nodes(self):
        return [self._cluster.head_node, *self.others]

    def _added(self):
        return self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def replace(self, place):
        """Lose one of the two others, and let a new one join."""
        self.kill(self.others[place])
        self.others[place] = self._added()

    def kill(self, node):
        """SIGKILL a node's raylet, and its workers: they go with a machine that is lost.

        On this one they would go on with what they were given, and nothing would be lost.
        """
        (raylet,) = node.all_processes["raylet"]
        pid = raylet.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for number in (pid, *map(int, children)):
            os.kill(number, signal.SIGKILL)

    def hosts(self, *nodes):
        """Return the processes that run trials on nodes: the hosts, and what they forked."""
        raylets = [n.all_processes["raylet"][0].process.pid for n in nodes or self._nodes]
        wanted = {str(pid) for pid in raylets}
        found = trials.processes("orchestration.cluster.host")
        return {pid for pid in found if trials.environment(pid).get("RAY_RAYLET_PID") in wanted}

    def busy(self, node):
        """Return whether a node runs a trial: a process that was forked from another one."""
        hosts = self.hosts(node)
        return any(_parent(pid) in hosts for pid in hosts)

    def shutdown(self):
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    from orchestration.cluster.authentication import own_token

    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch, own_token():
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # or they get nothing of a machine that is busy
        made = Nodes()
        yield made
        import ray

        ray.shutdown()
        made.shutdown()


@pytest.fixture
def place(nodes):
    from orchestration.cluster.cluster import Cluster

    return Cluster(nodes.address)


def run(path, out, place, listener=None, backend=None):
    campaign = load_campaign(path)
    engine = backend or FluidBackend()
    jobs = default_jobs(campaign, engine, place)
    return run_campaign(campaign, engine, out, jobs, listener or Listener(), executor=place)


def test_a_node_that_answers_otherwise_is_refused_by_its_name(place, tmp_path, monkeypatch):
    from orchestration.cluster import workers

    ours = workers.code_versions()
    monkeypatch.setattr(workers, "code_versions", lambda: {**ours, "numpy": "1.0"})
    with pytest.raises(NotReadyError, match=r"node \S+: it has numpy \S+, and the machine that"):
        run(trials.write_campaign(tmp_path), tmp_path / "runs", place)
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_while_ray_connects_is_an_interrupt_and_no_error_of_rays(monkeypatch):
    import ray

    from orchestration.cluster import cluster

    before = signal.getsignal(signal.SIGTERM)
    connected = []

    def connect(**_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray takes it over
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        connected.append(True)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", connect)
    with pytest.raises(KeyboardInterrupt):
        cluster._connected("127.0.0.1:1")
    assert connected
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_needs_this_machine_is_refused(place, tmp_path):
    import dataclasses

    campaign = load_campaign(trials.write_campaign(tmp_path))
    (trial, *_) = (dataclasses.replace(one, backend="hardware") for one in campaign.trials)
    with pytest.raises(InputError, match="run on one machine"):
        place.check(FluidBackend(), load_testbed("rlcc-7"), 1, [trial])


def test_run_folders_are_the_same_to_the_bit(place, tmp_path):
    from orchestration.run.executors import THIS_MACHINE

    path = trials.write_campaign(tmp_path / "with files")
    summary = run(path, tmp_path / "there", place)
    assert (summary.finished, summary.exit_code) == (4, 0)
    run(path, tmp_path / "here", THIS_MACHINE)
    here = trials.contents(tmp_path / "here" / "tiny")
    assert len(here) > 4 * 5
    assert trials.contents(tmp_path / "there" / "tiny") == here
    assert run(path, tmp_path / "there", place).skipped == 4


def test_a_trial_that_fails_says_why_and_stops_no_other(place, tmp_path):
    path = trials.write_campaign(tmp_path)
    campaign = load_campaign(path)
    (tmp_path / "mine.py").write_text(trials.TUNER.replace("time.sleep(", "1 / 0, ("))
    engine = FluidBackend()
    summary = run_campaign(campaign, engine, tmp_path / "runs", 4, Listener(), executor=place)
    assert (summary.finished, len(summary.failed)) == (2, 2)
    failure = next(iter(summary.failed.values()))
    assert "ZeroDivisionError" in failure.problems[0].what
    assert "mine.py" in failure.console


class Large(FluidBackend):
    """Plans more memory than there is."""

    def memory_bytes(self, trial, testbed, flows):
        return (1 << 50) if trial.tuner.name == "secn1" else 1

    def bundle(self):
        from orchestration.core.ports import TrialBundle

        return TrialBundle()


def test_a_trial_that_fits_no_node_fails_at_once(place, tmp_path):
    from orchestration.cluster.cluster import Cluster
    from orchestration.cluster.workers import ClusterWorkers, TaskFactory

    campaign = load_campaign(trials.write_campaign(tmp_path))
    trial = next(one for one in campaign.trials if one.tuner.name == "secn1")
    factory = TaskFactory(FluidBackend(), print, type("Nothing", (), {"of_value": None})())
    factory._bundled = Large()
    from orchestration.run.worker import Job

    assert isinstance(place, Cluster)
    place.slots()  # connects
    workers = ClusterWorkers(factory, 4 << 30)
    workers.start(Job(trial, load_testbed(trial.testbed), tmp_path / "a", tmp_path / "b"))
    ((_, message),) = workers.messages(0.1)
    assert "no node has more than 4096 MiB" in message.problems[0].what
    assert len(workers) == 0


@pytest.mark.kernel
def test_the_kernel_travels_and_so_does_a_network(place, tmp_path, monkeypatch):
    from orchestration.backends.emulated.backend import EmulatedBackend
    from orchestration.run.executors import THIS_MACHINE
    from tuners.learning import checkpoint

    path = trials.write_campaign(tmp_path, repeats=1, backend="emulated")
    for kind in ("safetensors", "json"):
        content = (checkpoint.PRETRAINED / f"acc-dctcp-1.{kind}").read_bytes()
        (tmp_path / f"own.{kind}").write_bytes(content)
    own = f"{{name: acc, checkpoint: {tmp_path}/own.safetensors}}"
    path.write_text(path.read_text().replace("secn1", own))
    run(path, tmp_path / "there", place, backend=EmulatedBackend())
    run(path, tmp_path / "here", THIS_MACHINE, backend=EmulatedBackend())
    here = trials.contents(tmp_path / "here" / "tiny")
    assert here
    assert trials.contents(tmp_path / "there" / "tiny") == here


def test_the_packet_engine_travels(place, tmp_path):
    from orchestration.backends.emulated.process_backend import ProcessBackend
    from orchestration.run.executors import THIS_MACHINE

    path = trials.write_campaign(tmp_path, repeats=1, backend="emulated")
    path.write_text(f"{path.read_text()}\nhost: {{congestion_control: dcqcn}}\n")
    run(path, tmp_path / "there", place, backend=ProcessBackend())
    run(path, tmp_path / "here", THIS_MACHINE, backend=ProcessBackend())
    here = trials.contents(tmp_path / "here" / "tiny")
    assert here
    assert trials.contents(tmp_path / "there" / "tiny") == here


def test_a_training_is_the_same_to_the_bit(place, tmp_path):
    pytest.importorskip("torch")
    from orchestration.run.executors import THIS_MACHINE
    from orchestration.training.request import TrainRequest
    from orchestration.training.train import train

    path = trials.write_campaign(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('[secn1, {name: "mine.py:Slow", nap_s: 0.0}]', "[secn1]"))
    request = TrainRequest("acc", str(path), "fluid", episodes=4)
    made = [
        train(request, FluidBackend(), tmp_path / name, 2, lambda *_: None, executor=where)
        for name, where in (("here", THIS_MACHINE), ("there", place))
    ]
    assert made[0].read_bytes() == made[1].read_bytes()
    assert not (tmp_path / "there" / "work").exists()


def test_ctrl_c_cancels_and_cleans_up_and_finished_trials_are_kept(nodes, tmp_path):
    path = trials.write_campaign(tmp_path, repeats=2, nap_s=600.0)
    main = "from orchestration.cli.main import main; main()"
    command = [sys.executable, "-X", "faulthandler", "-c", main, "run", str(path), "--no-report"]
    command += ["--out", str(tmp_path / "runs"), "--cluster", nodes.address]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "runs" / "tiny" / "journal.jsonl"

    def count(event):
        return sum(entry["event"] == event for entry in read_journal(journal))

    trials.until(lambda: count("trial-finished") == 2, "the quick trials are done")
    trials.until(nodes.hosts, "the others run")
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=trials.PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # it says where it hangs
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert "2 of 4 trials are not done" in said
    assert count("run-interrupted") == 1
    assert not list((tmp_path / "runs" / "tiny").glob(".*"))
    trials.until(lambda: not nodes.hosts(), "no trial is left on the nodes")
    kept = [(tmp_path / "runs" / "tiny" / one.id).is_dir() for one in load_campaign(path).trials]
    assert sum(kept) == 2


def test_a_machine_that_is_no_node_joins_without_cpus(nodes, place, monkeypatch):
    import ray

    from orchestration.cluster import launcher

    def alive():
        return [node for node in ray.nodes() if node["Alive"]]

    said = []
    slots, before = place.slots(), len(alive())
    with launcher.joined_cluster(nodes.address, said.append):
        assert len(alive()) == before
    monkeypatch.setattr(launcher, "_is_node", lambda address: False)
    with launcher.joined_cluster(nodes.address, said.append):
        assert len(alive()) == before + 1
        assert place.slots() == slots
    assert said == []  # the cluster asks for a token
    trials.until(lambda: len(alive()) == before, "it has left")


# Behind what needs three nodes that were never lost.
def test_a_node_that_is_lost_while_nodes_are_asked_is_left_out(nodes, place, tmp_path, monkeypatch):
    from orchestration.cluster.cluster import Cluster

    campaign = load_campaign(trials.write_campaign(tmp_path))
    known = place._nodes()
    monkeypatch.setattr(Cluster, "_nodes", lambda self: known)
    nodes.replace(1)
    place.check(FluidBackend(), load_testbed(campaign.trials[0].testbed), 1, campaign.trials)


# The last: of the three nodes, two are left.
def test_forty_trials_with_a_node_lost_have_the_same_tables(nodes, place, tmp_path, capfd):
    from orchestration.run.executors import THIS_MACHINE

    path = trials.write_campaign(tmp_path, repeats=20, nap_s=0.5)
    doomed, killed = nodes.others.pop(), []

    def at(count):
        if not killed and count >= 20 and nodes.busy(doomed):
            killed.append(count)
            nodes.kill(doomed)

    listener = Listener(at)
    summary = run(path, tmp_path / "there", place, listener)
    assert (summary.trials, summary.finished, summary.failed) == (40, 40, {})
    assert len(set(listener.finished_ids)) == 40
    assert capfd.readouterr().out == ""
    lost = [
        entry
        for entry in read_journal(tmp_path / "there" / "tiny" / "journal.jsonl")
        if entry["event"] == "trial-lost"
    ]
    assert killed
    assert lost
    assert all(entry["trial"] in listener.finished_ids for entry in lost)
    run(path, tmp_path / "here", THIS_MACHINE)
    here = trials.contents(tmp_path / "here" / "tiny")
    assert trials.contents(tmp_path / "there" / "tiny") == here
