"""A rack in real time: refused before anything is made, and what a kernel lacks."""

import json
import os
import struct
import subprocess

import pytest

from inventory.ansible import load_rack
from inventory.ansible_text import write_rack
from inventory.files import load_testbed
from inventory.rack import scaled
from orchestration.agent.bpf.btf import LayoutError, Layouts, minimal_type_information
from orchestration.backends.emulated import forwarding, host_kernel
from orchestration.backends.hardware.linux_switch import LinuxSwitch, MarkedSwitch
from orchestration.backends.hardware.settings import check_controls, hosts_without_dctcp
from orchestration.backends.hardware.switches import make_switch
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.trial import HostSpec
from orchestration.provision.desired import desired_state
from orchestration.virtual_rack import control
from orchestration.virtual_rack import layout as layouts
from orchestration.virtual_rack.layout import make_layout
from traffic.patterns.single_flow import SingleFlowSpec

SEVEN = load_testbed("rlcc-7")


@pytest.fixture
def kernel(monkeypatch):
    """Say what this machine's kernel lacks, as root."""

    def lacks(*names, code=0, said=""):
        done = subprocess.CompletedProcess([], code, json.dumps(names), said)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(host_kernel.subprocess, "run", lambda *_, **__: done)

    return lacks


def test_it_takes_root_and_nothing_is_made_without(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotReadyError, match="takes root") as refused:
        control.up(SEVEN, clock="real", folder=tmp_path / "rack")
    assert "sudo" in refused.value.remedy
    assert refused.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_what_a_rack_cannot_do_without_is_named_and_nothing_is_made(kernel, tmp_path):
    kernel("tbf", "netem")
    with pytest.raises(NotReadyError, match="lacks tbf") as refused:
        control.up(SEVEN, clock="real", folder=tmp_path / "rack")
    assert "modprobe sch_tbf" in refused.value.remedy
    kernel(code=1, said="unshare: unshare failed: Operation not permitted")
    with pytest.raises(NotReadyError, match=r"allow namespaces .*not permitted") as refused:
        control.up(SEVEN, clock="real", folder=tmp_path / "rack")
    assert "--privileged" in refused.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["sonic", "roce"])
def test_devices_of_virtual_time_are_refused_by_their_option(kernel, tmp_path, option):
    kernel()
    name = SEVEN.switches[0] if option == "sonic" else SEVEN.hosts[0]
    with pytest.raises(InputError, match=f"--{option}: {name}"):
        control.up(SEVEN, clock="real", folder=tmp_path / "rack", **{option: (name,)})
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_with_everything_has_the_devices_of_virtual_time(kernel):
    kernel()
    layout = layouts.real_time_layout(make_layout(SEVEN, (), ()))
    assert layout.clock == "real"
    access = layout.rack("/key", "/known").access
    assert all(device.lacks == () for device in access.values())
    port = SEVEN.ports_of[SEVEN.hosts[0]][0]
    assert layout.delay_on_arrival_ns(port) == 2 * port.delay_ns > 0
    assert layouts.limitations(layout.lacks) == []
    again = layout.from_json(layout.to_json())
    assert (again.clock, again.lacks) == ("real", ())


def test_what_a_kernel_lacks_reaches_inventory_queues_and_switches(kernel, tmp_path):
    kernel("red", "fq", "netem", "dctcp", "cubic")
    layout = layouts.real_time_layout(make_layout(SEVEN, (), ()))
    host, switch = SEVEN.hosts[0], SEVEN.switches[0]
    assert layout.delay_on_arrival_ns(SEVEN.ports_of[host][0]) == 0
    said = " ".join(layouts.limitations(layout.lacks))
    assert all(word in said for word in ("netem", "RED", "fq", "DCTCP", "no cubic"))
    path = tmp_path / "inventory.yml"
    write_rack(layout.rack("/key", "/known"), path)
    rack = load_rack(path)
    assert rack.access[host].lacks == ("fq", "dctcp", "cubic")
    assert rack.access[switch].lacks == ("red",)

    state = desired_state(rack)
    (nic,) = state[host]["network"]["interfaces"]
    assert "fair" not in nic["queues"]
    assert nic["queues"]["fifo"]["limit_bytes"] > 2**29
    assert "net/ipv4/tcp_congestion_control" not in state[host]["network"]["sysctls"]
    assert state[host]["network"]["sysctls"]["net/ipv4/tcp_ecn"] == "1"
    assert state[host]["network"]["congestion_controls"] == []
    queues = state[switch]["network"]["interfaces"][0]["queues"]
    assert "reds" not in queues
    assert queues["fifo"]["limit_bytes"] == SEVEN.queues[0].buffer_bytes

    marked = make_switch(rack, switch)
    assert type(marked) is MarkedSwitch
    assert marked.services == ("markq",)
    assert "BPF" in marked.sources()["marked_packets"]
    assert type(make_switch(layout_of_all().rack("/key", "/known"), switch)) is LinuxSwitch


def layout_of_all():
    return make_layout(SEVEN, (), ())


def test_the_scale_that_fits_a_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert forwarding.stored_hops_per_s() is None
    assert "doctor --benchmark" in forwarding.describe_scale(SEVEN, 1)
    # seven NICs of 100 Gbit/s, frames of 1524 bytes with what a wire adds, two links, and ACKs
    frame_bits = 8 * (SEVEN.mtu_bytes + SEVEN.framing_bytes)
    wanted = 7 * 100e9 / frame_bits * 2 * 1.5
    assert forwarding.line_rate_hops_per_s(SEVEN) == pytest.approx(wanted)
    # a quarter of what it did, in packets; or four frames a NIC in the 2 ms that a process is late
    # and the 0.5 ms that each of 3.5 on a core takes
    assert forwarding.smallest_scale(SEVEN, round(wanted / 5_000) + 1) == 20_000
    assert forwarding.smallest_scale(SEVEN, round(wanted * 10)) == 7_700
    assert forwarding.smallest_scale(scaled(SEVEN, 8000), round(wanted)) == 1
    forwarding.store_hops_per_s(round(wanted / 5_000) + 1)
    assert forwarding.stored_or_measured_hops_per_s() == round(wanted / 5_000) + 1
    assert "--scale 20000 would fit" in forwarding.describe_scale(SEVEN, 100)
    fits = forwarding.describe_scale(SEVEN, 20_000)
    assert "links of 5Mbps" in fits
    assert "would fit" not in fits


class Trial:
    def __init__(self, control, *own):
        self.host = HostSpec(congestion_control=control)
        self.traffic = [SingleFlowSpec("h1", "h2", 1, 0, congestion_control=name) for name in own]


def test_a_campaign_that_wants_a_missing_congestion_control_is_refused_by_its_name(kernel):
    kernel("cubic")
    rack = layouts.real_time_layout(make_layout(SEVEN, (), ())).rack("/key", "/known")
    for trial in (Trial("cubic"), Trial("reno", "cubic")):
        with pytest.raises(NotReadyError, match="h1: its kernel has no cubic") as refused:
            check_controls(rack, SEVEN, [trial])
        assert "congestion_control: dctcp" in refused.value.remedy
    check_controls(rack, SEVEN, [Trial("reno")])
    check_controls(layout_of_all().rack("/key", "/known"), SEVEN, [Trial("cubic")])


def test_dctcp_is_a_program_where_the_kernel_has_none(kernel):
    kernel("dctcp")
    rack = layouts.real_time_layout(make_layout(SEVEN, (), ())).rack("/key", "/known")
    for trial in (Trial("dctcp"), Trial("reno", "dctcp")):
        check_controls(rack, SEVEN, [trial])
        assert hosts_without_dctcp(rack, [trial]) == list(SEVEN.hosts)
    assert hosts_without_dctcp(rack, [Trial("reno")]) == []
    assert hosts_without_dctcp(layout_of_all().rack("/key", "/known"), [Trial("dctcp")]) == []


def btf():
    """Return type information: struct inner {int a, b;}, and struct outer with it in a union.

    And enum state {OPEN, LOST = 7}, and a function act.
    """
    names = b"\0int\0inner\0a\0b\0outer\0part\0bits\0state\0OPEN\0LOST\0act\0"
    at = {
        word.decode(): names.index(b"\0" + word + b"\0") + 1 for word in names.split(b"\0") if word
    }

    def kind(name, number, members, size, flag=0):
        return struct.pack("=III", at.get(name, 0), flag << 31 | number << 24 | members, size)

    def member(name, of, bits):
        return struct.pack("=III", at.get(name, 0), of, bits)

    def pair(name, value):
        return struct.pack("=Ii", at[name], value)

    types = (
        kind("int", 1, 0, 4) + struct.pack("=I", 32)  # 1
        + kind("inner", 4, 2, 8) + member("a", 1, 0) + member("b", 1, 32)  # 2
        + kind("", 5, 1, 8) + member("part", 2, 0)  # 3: a union without a name
        + kind("outer", 4, 2, 24, flag=1) + member("", 3, 64) + member("bits", 1, 3 << 24 | 131)
        + kind("state", 6, 2, 4) + pair("OPEN", 0) + pair("LOST", 7)  # 5
        + kind("act", 12, 0, 1)  # 6
    )  # fmt: skip
    head = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    return head + types + names


def test_offsets_come_from_the_kernels_type_information():
    layouts = Layouts(btf())
    assert layouts.offset("inner", "b") == 4
    assert layouts.offset("outer", "part.b") == 12
    for structure, path, said in (
        ("other", "a", "no struct other"),
        ("inner", "c", "no field c"),
        ("inner", "a.b", "no field a.b"),
        ("outer", "bits", "bit field"),
    ):
        with pytest.raises(LayoutError, match=said):
            layouts.offset(structure, path)
    assert (layouts.number("inner"), layouts.size("inner"), layouts.member_index("inner", "b")) == (
        2,
        8,
        1,
    )
    assert (layouts.enumerator("state", "LOST"), layouts.function("act")) == (7, 6)
    for asked, said in (
        (lambda: layouts.member_index("inner", "c"), "struct inner has no c"),
        (lambda: layouts.enumerator("state", "WON"), "enum state has no WON"),
        (lambda: layouts.enumerator("inner", "a"), "no enum inner"),
        (lambda: layouts.function("a"), "no function a"),
    ):
        with pytest.raises(LayoutError, match=said):
            asked()
    with pytest.raises(LayoutError, match="no struct inner"):
        Layouts(minimal_type_information()).size("inner")
    with pytest.raises(LayoutError, match="not the kernel"):
        Layouts(bytes(64))
    with pytest.raises(LayoutError, match="cut short"):
        Layouts(btf()[:60])
