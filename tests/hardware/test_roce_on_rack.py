"""RoCE on a virtual rack whose hosts have two NICs each: which NIC it takes, and its marks."""

import json

import pyarrow.parquet as pq
import pytest

from inventory.ansible import load_rack
from orchestration.bench.rack import closloop
from tests.hardware.rack_lab import provisioned_rack

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

RAILS = """
name: rails
kind: custom
mtu: 1500B
buffer: 1MB
hosts: [h1, h2, h3]
switches: [{name: leaf1, tier: 1}]
links:
  - {a: h1, b: leaf1, rate: 25Gbps, delay: 1us}
  - {a: h1, b: leaf1, rate: 25Gbps, delay: 1us}
  - {a: h2, b: leaf1, rate: 25Gbps, delay: 1us}
  - {a: h2, b: leaf1, rate: 25Gbps, delay: 1us}
  - {a: h3, b: leaf1, rate: 25Gbps, delay: 1us}
  - {a: h3, b: leaf1, rate: 25Gbps, delay: 1us}
"""
# A flow's number says which of its hosts' NICs it takes: two overload the first of h3's.
CAMPAIGN = """
campaign: marked
testbed: {testbed}
backend: hardware
tuners: [{{name: static, kmin_bytes: 2000, kmax_bytes: 4000}}]
traffic:
  - {{kind: flow, src: h1, dst: h3, size: 1MB, start: 0ms, driver: {driver}}}
  - {{kind: flow, src: h1, dst: h3, size: 1MB, start: 0ms, driver: {driver}}}
  - {{kind: flow, src: h2, dst: h3, size: 1MB, start: 0ms, driver: {driver}}}
repeats: 1
duration: 1s
drain: 4s
sample_period: 50ms
action_period: 50ms
"""
DRIVER = "{name: perftest, verb: send, events: true, size: 4KB, mtu: 1024}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rails")
    with provisioned_rack(folder, RAILS, roce=["all"]) as rack:
        yield rack


def test_roce_takes_each_nics_own_device_and_its_packets_are_marked(lab):
    """RED marks no packet without ECT: perftest's default traffic class has none."""
    rack, folder = lab
    assert load_rack(rack.inventory).access["h1"].rdma_devices == ("rxe-h1", "rxe-h1-1")
    path = folder / "marked.yml"
    path.write_text(CAMPAIGN.format(testbed=folder / "rails.yml", driver=DRIVER))
    _, said = closloop(rack, folder, "run", str(path), "-i", str(rack.inventory), "--json")
    trials = list((folder / "runs" / "marked").glob("*/trial.json"))
    assert trials, (said, (folder / "log").read_text())
    flows = pq.read_table(trials[0].parent / "flows.parquet").to_pydict()
    assert flows["status"] == ["done"] * 3
    trial = json.loads(trials[0].read_text())
    packets = {
        nic: counted["hw"].get("sent_pkts") for nic, counted in trial["facts"]["nics"].items()
    }
    # four packets of the MTU a message, and 250 messages a flow
    assert [packets[nic] for nic in ("h1:eth0", "h1:eth1", "h2:eth0")] == [1000] * 3
    assert packets.get("h2:eth1") is None
    # Soft-RoCE has no DCQCN: nobody knows whether marks slow it down
    reasons = [r["text"] for r in trial["stamp"]["reasons"] if r["code"] == "marks-untested"]
    assert "h2:eth1 and 2 more: driver rdma_rxe has no counter of CNPs sent or" in reasons[0]
    assert trial["facts"]["nic_congestion"] == {}
    ports = pq.read_table(trials[0].parent / "ports.parquet").to_pydict()
    marked = dict(zip(ports["port"], ports["marked_packets"], strict=True))
    # h3's first NIC is at eth4
    assert marked["eth4"] > 100
