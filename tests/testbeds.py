"""Testbeds of tests: the text of a file, and stars that are built without one."""

from orchestration.core.topology import Device, LinkSpec, Testbed


def leaf_spine(
    name,
    leaves,
    spines,
    hosts_per_leaf,
    host_rate,
    uplink_rate,
    *,
    delay="1us",
    mtu="1500B",
    **more,
):
    """Return the text of a leaf-spine testbed's file; `more` are further fields, as YAML."""
    fields = {
        "name": name,
        "kind": "leaf-spine",
        "leaves": leaves,
        "spines": spines,
        "hosts_per_leaf": hosts_per_leaf,
        "host_link": f"{{rate: {host_rate}, delay: {delay}}}",
        "uplink": f"{{rate: {uplink_rate}, delay: {delay}}}",
        "mtu": mtu,
        **more,
    }
    return "".join(f"{key}: {value}\n" for key, value in fields.items())


def single_switch(name, hosts, rate, *, delay="1us", mtu="1500B", **more):
    """Return the text of a testbed's file: hosts at one switch."""
    fields = {"name": name, "kind": "single-switch", "hosts": hosts}
    fields |= {"host_link": f"{{rate: {rate}, delay: {delay}}}", "mtu": mtu, **more}
    return "".join(f"{key}: {value}\n" for key, value in fields.items())


# Four switches in a ring, with hosts at each: flows to the switch after the next turn up and down,
# and wait for each other all around.
_RING = """
kind: custom
name: ring
mtu: 1500B
switch: {buffer: 400KB, alpha: 1, pfc: [0], watchdog: {detect: 3ms, restore: 3ms, action: ACTION}}
"""
RING_SWITCHES = {"l1": 1, "s1": 2, "l2": 1, "s2": 2}


def ring(action):
    """Return the text of the ring's file: its watchdog does `action`."""
    cable = "rate: 25Gbps, delay: 1us"
    hosts = [f"{name}h{n}" for name in RING_SWITCHES for n in (1, 2)]
    links = [(host, host[:2]) for host in hosts]
    links += [("l1", "s1"), ("l2", "s1"), ("l2", "s2"), ("l1", "s2")]
    lines = [
        _RING.replace("ACTION", action),
        f"hosts: [{', '.join(hosts)}]",
        "switches:",
        *(f"  - {{name: {name}, tier: {tier}}}" for name, tier in RING_SWITCHES.items()),
        "links:",
        *(f"  - {{a: {a}, b: {b}, {cable}}}" for a, b in links),
    ]
    return "\n".join(lines)


def star(*gbps, delay_ns=1000, buffer_bytes=1_000_000):
    """Return hosts h0, h1 … at the switch s, each with a link of so many Gbit/s."""
    hosts = [Device(f"h{number}", "host", 0) for number in range(len(gbps))]
    links = [
        LinkSpec(host.name, "s", rate * 10**9, delay_ns)
        for host, rate in zip(hosts, gbps, strict=True)
    ]
    devices = [*hosts, Device("s", "switch", 1)]
    return Testbed.build("star", devices, links, mtu_bytes=1500, buffer_bytes=buffer_bytes)
