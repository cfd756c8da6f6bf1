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


def star(*gbps, delay_ns=1000, buffer_bytes=1_000_000):
    """Return hosts h0, h1 … at the switch s, each with a link of so many Gbit/s."""
    hosts = [Device(f"h{number}", "host", 0) for number in range(len(gbps))]
    links = [
        LinkSpec(host.name, "s", rate * 10**9, delay_ns)
        for host, rate in zip(hosts, gbps, strict=True)
    ]
    devices = [*hosts, Device("s", "switch", 1)]
    return Testbed.build("star", devices, links, mtu_bytes=1500, buffer_bytes=buffer_bytes)
