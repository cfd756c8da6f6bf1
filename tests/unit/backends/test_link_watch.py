"""Ports that go down, or flap, between two looks."""

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.linux.kernel import read_links
from orchestration.agent.main import OperationError
from orchestration.backends.hardware.monitors import LinkMonitor
from orchestration.core.errors import TrialError
from orchestration.device.errors import DeviceError, DeviceGone


class FakeFleet:
    """Answers from `links`, what every device's interfaces are."""

    def __init__(self):
        self.links = {}

    def ask(self, op, requests):
        assert op == "links.read"
        return {
            device: {name: self.links.get((device, name), [1, 2]) for name in asked["interfaces"]}
            for device, asked in requests.items()
        }


@pytest.fixture
def fleet():
    return FakeFleet()


@pytest.fixture
def watch(fleet):
    testbed = load_testbed("graphcc")
    access = {
        device.name: Access(
            device.name,
            "192.0.2.1",
            interfaces=tuple(f"eth{n}" for n in range(len(testbed.ports_of[device.name]))),
        )
        for device in testbed.devices
    }
    return LinkMonitor(Rack("lab", testbed, access), fleet)


def test_ports_that_stay_up_are_no_news(watch):
    watch.start()
    watch.finish()


def test_a_port_that_is_down_is_said_before_anything_starts(watch, fleet):
    fleet.links["h1", "eth0"] = [0, 3]
    with pytest.raises(TrialError, match=r"h1: eth0, towards .*, is down") as raised:
        watch.start()
    assert "cable" in raised.value.remedy


def test_flaps_and_losses_are_named(watch, fleet):
    watch.start()
    fleet.links["h1", "eth0"] = [1, 6]
    fleet.links["h2", "eth0"] = [0, 3]
    with pytest.raises(TrialError) as raised:
        watch.finish()
    first, second = raised.value.message.split("; ")
    assert first.startswith("h1: eth0, towards ")
    assert first.endswith(", flapped during the trial: 4 changes")
    assert second.startswith("h2: eth0, towards ")
    assert second.endswith(", went down during the trial")


def test_many_ports_are_not_all_listed(watch, fleet):
    fleet.links.update({(f"h{n}", "eth0"): [0, 1] for n in range(1, 10)})
    with pytest.raises(TrialError) as raised:
        watch.start()
    assert raised.value.message.endswith("; and 3 more")


def flap_while_watched(watch, fleet, error):
    with watch:
        fleet.links["h1", "eth0"] = [1, 4]
        raise error


@pytest.mark.parametrize("error", [TrialError("no end"), DeviceError("h3", "no connection")])
def test_a_flap_is_said_in_place_of_what_it_caused(watch, fleet, error):
    with pytest.raises(TrialError, match=r"h1: eth0, towards .*, flapped"):
        flap_while_watched(watch, fleet, error)


def test_a_lost_device_is_not_asked_again(watch, fleet):
    with pytest.raises(DeviceGone):
        flap_while_watched(watch, fleet, DeviceGone("h1", "no answer"))


def test_what_the_kernel_says(tmp_path):
    for name, carrier, changes in (("eth0", "1\n", "2\n"), ("eth1", "0\n", "5\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "carrier").write_text(carrier)
        (tmp_path / name / "carrier_changes").write_text(changes)
    read = read_links({"interfaces": ["eth0", "eth1", "eth9"]}, str(tmp_path))
    assert read == {"eth0": [1, 2], "eth1": [0, 5], "eth9": [0, -1]}
    with pytest.raises(OperationError, match="not an interface"):
        read_links({"interfaces": ["../eth0"]}, str(tmp_path))
