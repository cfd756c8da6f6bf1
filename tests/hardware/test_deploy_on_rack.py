"""A model in force on a virtual rack's hosts: pacing TCP, and in a stand-in for BlueField-3."""

import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestration.bench.rack import closloop, device_dumps, program
from orchestration.policies.catboost_model import read_model
from orchestration.virtual_rack.bluefield.files import STATE
from tests.hardware.rack_lab import provisioned_rack
from tuners.pretrained import __path__ as pretrained

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

MODEL = Path(pretrained[0]) / "rl-cc-trees.json"
HASH = read_model(MODEL).hash
FOUR = """
name: four
kind: custom
mtu: 1500B
buffer: 1MB
hosts: [h1, h2, h3, h4]
switches: [{name: leaf1, tier: 1}]
links:
  - {a: h1, b: leaf1, rate: 10Gbps, delay: 5us}
  - {a: h2, b: leaf1, rate: 10Gbps, delay: 5us}
  - {a: h3, b: leaf1, rate: 10Gbps, delay: 5us}
  - {a: h4, b: leaf1, rate: 10Gbps, delay: 5us}
"""
# Thresholds that never mark: only the policy holds the queue.
INCAST = """
campaign: incast
testbed: {testbed}
backend: hardware
tuners: [{{name: static, kmin_bytes: 900000, kmax_bytes: 950000}}]
traffic:
  - {{kind: flow, src: h2, dst: h1, size: 5MB, start: 0ms}}
  - {{kind: flow, src: h3, dst: h1, size: 5MB, start: 0ms}}
  - {{kind: flow, src: h4, dst: h1, size: 5MB, start: 0ms}}
repeats: 1
duration: 14ms
drain: 50ms
sample_period: 100us
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The rack, and a folder with the model and another one."""
    folder = tmp_path_factory.mktemp("deploy")
    other = json.loads(MODEL.read_text())
    other["oblivious_trees"][0]["leaf_values"][0] += 0.01
    (folder / "other.json").write_text(json.dumps(other))
    with provisioned_rack(folder, FOUR, bluefield=("h1",)) as rack:
        yield rack


def deploy(lab, *words, code=0):
    """Run `closloop deploy WORDS` on the rack; return what each host says."""
    rack, folder = lab
    found, text = closloop(rack, folder, "deploy", *words, "-i", str(rack.inventory), "--json")
    assert found == code, text + (folder / "log").read_text()[-2000:]
    return {host["device"]: host for host in json.loads(text)} if text.startswith("[") else text


def ssh(lab, device, command):
    assert lab[0].run(["ssh", device, command]) == 0, command


def incast(lab, name):
    """Run an incast; return the mean queue in bytes once it has begun, and the longest flow."""
    rack, folder = lab
    (folder / "incast.yml").write_text(INCAST.format(testbed=folder / "four.yml"))
    code, text = closloop(
        rack, folder, "run", "incast.yml", "-i", str(rack.inventory), "--out", name, "--json"
    )
    assert code == 0, text
    (made,) = (folder / name / "incast").glob("static-*")
    ports = pq.read_table(made / "ports.parquet").to_pylist()
    queue = [
        row["qlen_bytes"]
        for row in ports
        if (row["device"], row["port"]) == ("leaf1", "eth0") and 7e6 < row["t_ns"] < 11e6
    ]
    flows = pq.read_table(made / "flows.parquet").to_pylist()
    assert all(flow["end_ns"] for flow in flows)
    return sum(queue) / len(queue), max(flow["fct_ns"] for flow in flows)


def test_a_model_paces_an_incast_until_it_is_undone(lab):
    rack, _ = lab
    found = device_dumps(rack)
    unpaced_bytes, unpaced_ns = incast(lab, "before")
    said = deploy(lab, str(MODEL), "--name", "edge", "--base-rtt", "24us")
    assert {host["reports"]["model"] for host in said.values()} == {HASH}
    paced_bytes, paced_ns = incast(lab, "paced")
    status = deploy(lab, "--status")
    for name in ("h2", "h3", "h4"):
        counts = status[name]["reports"]["counts"]
        assert counts["flows"] == 1
        assert counts["decisions"] > 10
        assert counts["refused"] == counts["smoothed"] == 0
    assert paced_bytes < unpaced_bytes / 2
    assert paced_ns < 1.5 * unpaced_ns
    deploy(lab, "--undo", "edge")
    assert device_dumps(rack) == found
    assert {host["reports"]["model"] for host in deploy(lab, "--status").values()} == {""}


def test_connections_that_outlive_an_undo_get_their_pacing_rate_back(lab):
    deploy(lab, str(MODEL), "--name", "edge", "--base-rtt", "24us")
    ask = "s.getsockopt(1, 47, 8)"
    server = "import socket; s = socket.create_server(('198.18.1.3', 5001)); c = s.accept()[0]"
    client = (
        "import socket, time; s = socket.create_connection(('198.18.1.3', 5001));"
        f"print(int.from_bytes({ask}, 'little'), flush=True);"
        f"[time.sleep(0.05) for _ in iter(lambda: {ask} == bytes([255] * 8), True)];"
        "print('free', flush=True)"
    )
    run = 'nohup python3 -c "{}; {}" > /tmp/{} 2>&1 < /dev/null &'
    ssh(lab, "h3", run.format(server, "c.recv(1)", "server"))
    ssh(lab, "h2", "sleep 1; " + run.format(client, "pass", "client"))
    ssh(lab, "h2", "sleep 1; grep -qx 1250000000 /tmp/client")
    deploy(lab, "--undo", "edge")
    ssh(lab, "h2", "sleep 1; grep -qx free /tmp/client")
    ssh(lab, "h3", "rm /tmp/server")
    ssh(lab, "h2", "rm /tmp/client")


def test_a_bluefield_takes_versions_and_refuses_by_name_before_anything_changes(lab):
    rack, folder = lab
    found, other = device_dumps(rack), read_model(folder / "other.json").hash
    deploy(lab, str(MODEL), "--name", "edge")
    ssh(lab, "h1", f"sed -i 's/0, 1, 1/0, 0, 1/' {STATE}; mv /opt/mellanox/doca/tools/dpacc /tmp")
    deploy(lab, "other.json", "--name", "edge", code=3)
    log = (folder / "log").read_text()
    assert "h1: /opt/mellanox/doca/tools/dpacc is missing" in log
    assert "USER_PROGRAMMABLE_CC of rxe-h1 takes effect only after a power cycle" in log
    said = deploy(lab, "--status")
    assert {host["reports"]["model"] for host in said.values()} == {HASH}
    ssh(lab, "h1", f"sed -i 's/0, 0, 1/0, 1, 1/' {STATE}; mv /tmp/dpacc /opt/mellanox/doca/tools")
    said = deploy(lab, "other.json", "--name", "edge")["h1"]["reports"]
    assert (said["model"], said["state"], said["enabled"]) == (other, "Active", 1)
    ssh(lab, "h1", f"grep -q 'model {other}' /run/bluefield-rxe-h1.ppcc")
    assert deploy(lab, "--undo", "edge")["h1"]["reports"]["model"] == HASH
    assert deploy(lab, "--undo", "edge")["h1"]["reports"] == {"model": ""}
    ssh(lab, "h1", "rm /run/bluefield-rxe-h1.lock; ! pgrep doca_pcc")
    assert device_dumps(rack) == found


def test_a_deployment_killed_in_the_middle_is_put_back_by_restore(lab):
    rack, folder = lab
    found = device_dumps(rack)
    deploy(lab, str(MODEL), "--name", "edge")
    # a build that takes its time
    ssh(lab, "h1", "mv /usr/local/bin/ninja /tmp")
    ssh(lab, "h1", "printf '#!/bin/sh\nsleep 100000\n' > /tmp/slow; chmod +x /tmp/slow")
    ssh(lab, "h1", "ln -s /tmp/slow /usr/local/bin/ninja")
    words = program("deploy", "other.json", "--name", "edge", "-i", str(rack.inventory))
    process = rack.start(words, cwd=folder)
    deadline = time.monotonic() + 120
    while rack.run(["ssh", "h1", "pgrep -x sleep"]):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.kill(9)
    process.wait()
    rack.inject("h1", "kill agent")
    ssh(lab, "h1", "pkill -x sleep; rm /tmp/slow; mv /tmp/ninja /usr/local/bin/ninja")
    said = deploy(lab, "--status")["h1"]
    assert "closloop deploy edge" in said["interrupted"]["holder"]
    assert said["reports"]["model"] == HASH
    code, text = closloop(rack, folder, "restore", str(rack.inventory), "--json")
    assert code == 0, text
    assert {host["reports"]["model"] for host in json.loads(text)["policies"]} == {""}
    assert closloop(rack, folder, "provision", str(rack.inventory), "--json")[0] == 0
    ssh(lab, "h1", "rm -f /run/bluefield-rxe-h1.lock")
    assert device_dumps(rack) == found
