"""What goes to the nodes of a cluster, and what is refused or left alone without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inventory.ansible import load_machines, load_rack
from orchestration.campaign.expand import load_campaign
from orchestration.cluster.tasks import (
    cache_name,
    input_files,
    missing_in,
    read_files,
    write_executable,
    write_files,
)
from orchestration.core.errors import InputError
from orchestration.core.files import COPIED_FILES_ROOT, local_path
from orchestration.run.executors import THIS_MACHINE
from orchestration.run.launcher import executor_named
from traffic.workloads import load_workload
from tuners.learning import checkpoint

ROOT = Path(__file__).resolve().parents[3]
CAMPAIGN = """\
campaign: own
testbed: graphcc
backend: fluid
tuners: [{name: acc, checkpoint: mine.safetensors}]
traffic:
  - {kind: poisson, workload: table.csv, load: 0.3}
  - {kind: replay, file: "flows-{repeat}.csv"}
repeats: 2
duration: 1ms
"""
INVENTORY = """\
all:
  vars: {closloop_known_hosts: known, ansible_user: me}
  children:
    cluster:
      hosts:
        one: {ansible_host: 192.0.2.11, ansible_python_interpreter: /opt/python}
        two: {ansible_port: 2222}
"""
RACK = """\
all:
  vars: {closloop_mtu: 1500B, closloop_buffer: 16MB, ansible_user: root}
  children:
    hosts:
      hosts:
        h1:
          closloop_links:
            - {interface: e0, peer: leaf, peer_interface: p1, rate: 25Gbps, delay: 1us}
        h2:
          closloop_links:
            - {interface: e0, peer: leaf, peer_interface: p2, rate: 25Gbps, delay: 1us}
    leaves:
      hosts:
        leaf:
          closloop_links:
            - {interface: p1, peer: h1, peer_interface: e0, rate: 25Gbps, delay: 1us}
            - {interface: p2, peer: h2, peer_interface: e0, rate: 25Gbps, delay: 1us}
"""


def write_campaign(folder):
    (folder / "table.csv").write_text("bytes,cdf\n1000,0\n2000,1\n")
    for repeat in (1, 2):
        flows = "start_ns,src,dst,bytes,class\n0,h1,h2,1000,any\n"
        (folder / f"flows-{repeat}.csv").write_text(flows)
    for kind in ("safetensors", "json"):
        content = (checkpoint.PRETRAINED / f"acc-dctcp-1.{kind}").read_bytes()
        (folder / f"mine.{kind}").write_bytes(content)
    path = folder / "own.yml"
    path.write_text(CAMPAIGN)
    return path


def test_a_trials_own_files_are_those_it_is_made_from(tmp_path):
    first, second = load_campaign(write_campaign(tmp_path)).trials
    names = {path.name for path in input_files(first)}
    assert names == {"table.csv", "mine.safetensors", "mine.json", f"flows-{first.repeat}.csv"}
    assert names != {path.name for path in input_files(second)}


def test_a_file_that_was_brought_is_found_by_its_own_path(tmp_path, monkeypatch):
    there = tmp_path / "root" / "home" / "me" / "table.csv"
    there.parent.mkdir(parents=True)
    there.write_text("bytes,cdf\n1000,0\n2000,1\n")
    assert local_path("/home/me/table.csv") == "/home/me/table.csv"
    monkeypatch.setenv(COPIED_FILES_ROOT, str(tmp_path / "root"))
    assert local_path("/home/me/table.csv") == str(there)
    assert local_path("table.csv") == "table.csv"
    assert local_path("/home/me/other.csv") == "/home/me/other.csv"
    assert load_workload("/home/me/table.csv").mean_bytes == 1500


def test_folders_come_back_as_they_were(tmp_path):
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "a").write_bytes(b"\0\1")
    (source / "below" / "b").write_bytes(b"")
    write_files(tmp_path / "made", read_files(source))
    assert read_files(tmp_path / "made") == {"a": b"\0\1", "below/b": b""}
    with pytest.raises(OSError):
        write_files(tmp_path / "made", read_files(source))
    assert sorted(os.listdir(tmp_path)) == ["made", "source"]


def test_a_cache_is_known_by_its_content(tmp_path):
    assert cache_name({"a": "1"}) == cache_name({"a": "1"}) != cache_name({"a": "2"})
    assert missing_in(tmp_path, ["x/linux"]) == ["x/linux"]
    write_executable(tmp_path / "x" / "linux", b"kernel")
    assert missing_in(tmp_path, ["x/linux"]) == []
    assert os.access(tmp_path / "x" / "linux", os.X_OK)
    assert os.listdir(tmp_path / "x") == ["linux"]


def test_machines_are_a_group_of_an_inventory(tmp_path):
    path = tmp_path / "machines.yml"
    path.write_text(INVENTORY)
    found = load_machines(path)
    assert [(one.device, one.address, one.port, one.user) for one in found.access] == [
        ("one", "192.0.2.11", 22, "me"),
        ("two", "two", 2222, "me"),
    ]
    assert found.access[0].python == "/opt/python"
    assert found.known_hosts_file == str(tmp_path / "known")
    path.write_text(INVENTORY.replace("cluster:", "clusters:"))
    with pytest.raises(InputError, match="no machine in the group 'cluster'"):
        load_machines(path)
    path.write_text(INVENTORY.replace(", ansible_user: me", ""))
    with pytest.raises(InputError, match="ansible_user"):
        load_machines(path)


def test_a_racks_inventory_may_have_the_group(tmp_path):
    path = tmp_path / "rack.yml"
    path.write_text(RACK)
    before = load_rack(path)
    own = "    cluster:\n      hosts:\n        big: {ansible_host: 192.0.2.99, ansible_user: me}\n"
    path.write_text(RACK + own)
    assert load_rack(path) == before
    assert [one.device for one in load_machines(path).access] == ["big"]


def test_without_the_option_trials_run_here():
    with executor_named("") as place:
        assert place is THIS_MACHINE


@pytest.mark.parametrize("cluster", ["nowhere", "192.0.2.1", "-x:1", "host:port"])
def test_what_is_no_cluster_is_refused(cluster):
    pytest.importorskip("ray")
    with pytest.raises(InputError, match="is not a cluster"), executor_named(cluster):
        pass


@pytest.mark.slow
def test_ray_is_not_imported_without_the_option(tmp_path):
    """Neither for a run nor for the help of a verb that has the option."""
    path = tmp_path / "own.yml"
    path.write_text(
        "campaign: own\ntestbed: rlcc-7\nbackend: fluid\ntuners: [secn1]\n"
        "traffic: [{kind: incast, fan_in: 4, size: 64KB, period: 500us}]\nduration: 1ms\n"
    )
    script = (
        "import sys\n"
        "from orchestration.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    assert 'ray' not in sys.modules and 'fabric' not in sys.modules\n"
    )
    for words in (["run", str(path), "--out", str(tmp_path / "runs")], ["train", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "AssertionError" not in done.stderr


def test_watching_trials_of_a_cluster_is_refused(tmp_path):
    from orchestration.cli.run import RunOptions

    with pytest.raises(InputError, match="cannot be watched from here"):
        RunOptions(cluster="auto").run(None, watch=True)
