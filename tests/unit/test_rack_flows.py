"""Flows of a rack by the hosts' own socket driver, on loopback addresses in one process."""

import os
import signal

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.device.agent.main import OperationError
from orchestration.device.errors import DeviceError
from orchestration.model.trial import SingleFlowSpec
from orchestration.studies.bench.outcome import bench_trial
from traffic.drivers.host_sockets import operations
from traffic.drivers.rack import RackFlows
from traffic.schedule import make_schedule


class Agent:
    """What the driver needs of an agent that nobody waits for."""

    def at_end(self, do):
        self.end = do


class Fleet:
    """Hosts whose agents are in this process; a host may lose its driver after a step."""

    def __init__(self, hosts, dies="", after=""):
        self._agents = {host: Agent() for host in hosts}
        self._does = {host: operations(agent) for host, agent in self._agents.items()}
        self._dies, self._after, self._pids = dies, after, {}

    def ask(self, op, requests):
        failed, answers = None, {}
        for host, request in requests.items():
            try:
                answers[host] = self._does[host][op]({"op": op, **request})
            except OperationError as error:
                failed = failed or DeviceError(host, str(error))
        if op == "flows.load":
            self._pids = answers
        if op == self._after:
            os.kill(self._pids[self._dies], signal.SIGKILL)
        if failed:
            raise failed
        return answers

    def end(self):
        for agent in self._agents.values():
            agent.end()


def connect(fleet):
    testbed = load_testbed("graphcc")
    access = {device.name: Access(device.name, "192.0.2.1") for device in testbed.devices}
    rack = Rack("here", testbed, access, fabric_prefix="127.64.0.0/12")
    trial = bench_trial((SingleFlowSpec("h1", "h9", 1_000, 0),), 1_000_000)
    flows = RackFlows(trial, rack, make_schedule(trial, testbed), fleet, {})
    try:
        flows.connect({})
        return flows.records()
    finally:
        fleet.end()


def test_flows_are_connected():
    assert connect(Fleet(["h1", "h9"])).retransmits.tolist() == [0]


@pytest.mark.parametrize("step", ["flows.listen", "flows.load"])
def test_a_driver_that_died_is_named_by_its_host_and_not_by_the_one_it_refused(step):
    with pytest.raises(DeviceError) as caught:
        connect(Fleet(["h1", "h9"], dies="h9", after=step))
    assert caught.value.message.startswith("h9: ")
    assert "process died" in caught.value.message
