"""What is fuzzed: each reader of files and streams from elsewhere, with valid inputs to begin from.

A target takes the bytes of one input and a folder to put files into. It may raise the errors in
`Target.refusals`, and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from inventory.ansible import load_rack
from inventory.files import load_testbed
from orchestration.agent.main import Decoder, FrameError, encode
from orchestration.agent.sonic import resp
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError
from orchestration.exchange.capture import read_capture
from orchestration.exchange.csv_flows import import_csv
from orchestration.exchange.hpcc_import import HpccFiles, import_hpcc
from orchestration.exchange.netflow_sflow import read_nfdump, read_sflowtool
from orchestration.exchange.omnetpp_import import import_omnetpp
from traffic.patterns.replay import read_flows
from traffic.workloads import load_workload

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "unit" / "exchange"), str(TESTS / "unit" / "inventory")]
import test_exchange_csv as csv_samples  # noqa: E402
import test_exchange_flows as flow_samples  # noqa: E402
import test_exchange_hpcc as hpcc_samples  # noqa: E402
import test_exchange_omnetpp as omnetpp_samples  # noqa: E402
import test_inventory_ansible as inventory_samples  # noqa: E402

FOUND = Path(__file__).parent / "found"
IDLE_NS = 50_000_000
PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """`read` takes an input; `begins` are valid ones."""

    read: Callable[[bytes, Path], object]
    begins: Callable[[], Iterator[bytes]]
    refusals: tuple[type[Exception], ...] = (InputError,)


def _as_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def run(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return run


def _files(pattern: str, folder: Path) -> Callable[[], Iterator[bytes]]:
    def begins() -> Iterator[bytes]:
        for path in sorted(folder.glob(pattern)):
            yield path.read_bytes()

    return begins


def _one_of(
    valid: dict[str, str], read: Callable[[Path], object]
) -> tuple[Callable[[bytes, Path], object], Callable[[], Iterator[bytes]]]:
    """The first byte of an input says which of several files the rest is; others are valid."""
    names = list(valid)

    def run(data: bytes, folder: Path) -> object:
        for name, text in valid.items():
            (folder / name).write_text(text)
        if data:
            (folder / names[data[0] % len(names)]).write_bytes(data[1:])
        return read(folder)

    def begins() -> Iterator[bytes]:
        for place, text in enumerate(valid.values()):
            yield bytes([place]) + text.encode()

    return run, begins


def _hpcc(folder: Path) -> object:
    names = {field.name: folder / f"{field.name}.txt" for field in dataclasses.fields(HpccFiles)}
    return import_hpcc(HpccFiles(**{key: path for key, path in names.items() if path.exists()}))


def _campaigns() -> Iterator[bytes]:
    for plan in sorted((TESTS / "golden" / "campaigns").glob("*.plan.json")):
        yield plan.with_name(plan.name.removesuffix(".plan.json") + ".yml").read_bytes()


def _captures() -> Iterator[bytes]:
    yield flow_samples.pcap(flow_samples.TWO)
    yield flow_samples.pcap(flow_samples.TWO, order=">", nano=False)
    yield flow_samples.pcapng(flow_samples.TWO)


def _sflow() -> Iterator[bytes]:
    frame = flow_samples.segment(1, 2, 7000, 1448, 1)
    yield (flow_samples.sample("10.9.0.1", 100, frame) * 2).encode()


def _redis(data: bytes, folder: Path) -> object:
    """Read replies as they come over a socket: all at once, and cut in two."""
    path = str(folder / "redis.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen(1)
        stream = resp._Stream(path, 1.0)
        try:
            peer, _ = server.accept()
            with peer:
                found = []
                for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
                    if piece:
                        peer.sendall(piece)
                        stream.fill()
                        found += list(stream.ready())
                return found
        finally:
            stream.close()


def _replies() -> Iterator[bytes]:
    yield b"+OK\r\n:12\r\n-ERR no\r\n$-1\r\n$3\r\nabc\r\n*2\r\n$1\r\na\r\n*1\r\n:-5\r\n"
    yield resp.encode(["HGETALL", "COUNTERS:oid:0x1000000000002", b"\x00\xff"])


def _frames(data: bytes, folder: Path) -> object:
    decoder = Decoder()
    half = len(data) // 2
    return decoder.feed(data[:half]) + decoder.feed(data[half:])


def _messages() -> Iterator[bytes]:
    yield encode({"op": "hello", "id": 1}) + encode({"event": "sample", "rows": [[1, 2.5, "é"]]})
    yield len(b"[]").to_bytes(4, "big") + json.dumps([]).encode()


_csv_read, _csv_begins = _one_of(
    {"flows.csv": csv_samples.TABLE, "map.yml": csv_samples.MAPPING},
    lambda folder: import_csv(folder / "flows.csv", folder / "map.yml"),
)
_omnetpp_read, _omnetpp_begins = _one_of(
    {
        "a.vec": omnetpp_samples.VEC,
        "map.yml": omnetpp_samples.MAPPING,
        "b.sca": omnetpp_samples.SCA,
    },
    lambda folder: import_omnetpp([folder / "a.vec", folder / "b.sca"], folder / "map.yml"),
)
_hpcc_read, _hpcc_begins = _one_of(
    {
        "topology.txt": hpcc_samples.TOPOLOGY,
        "flow.txt": hpcc_samples.FLOWS,
        "config.txt": hpcc_samples.CONFIG,
        "queues.txt": hpcc_samples.QLEN,
        "fct.txt": hpcc_samples.FCT,
    },
    _hpcc,
)

TARGETS: dict[str, Target] = {
    "campaign": Target(_as_file("campaign.yml", load_campaign), _campaigns),
    "testbed": Target(
        _as_file("testbed.yml", lambda path: load_testbed(str(path))),
        _files("*.yml", PACKAGE / "inventory" / "testbeds"),
    ),
    "inventory": Target(
        _as_file("inventory.yml", load_rack), lambda: iter([inventory_samples.RACK.encode()])
    ),
    "flow-file": Target(
        _as_file("flows.csv", lambda path: read_flows(str(path))),
        lambda: iter([b"start_ns,src,dst,bytes,class\n0,h1,h2,1000,a\n500,h2,h3,64,b\n"]),
    ),
    "workload": Target(
        _as_file("sizes.csv", lambda path: load_workload(str(path))),
        _files("*.csv", PACKAGE / "traffic" / "tables"),
    ),
    "csv": Target(_csv_read, _csv_begins),
    "hpcc": Target(_hpcc_read, _hpcc_begins),
    "omnetpp": Target(_omnetpp_read, _omnetpp_begins),
    "capture": Target(_as_file("a.pcap", lambda path: read_capture(path, IDLE_NS)), _captures),
    "netflow": Target(
        _as_file("flows.csv", lambda path: read_nfdump(path, IDLE_NS)),
        lambda: iter([flow_samples.NFDUMP.encode()]),
    ),
    "sflow": Target(
        _as_file("sflow.txt", lambda path: read_sflowtool(path, IDLE_NS)),
        _sflow,
    ),
    "agent": Target(_frames, _messages, (FrameError,)),
    "redis": Target(_redis, _replies, (resp._ClosedError,)),
}


def check(name: str, data: bytes, folder: Path) -> None:
    """Give an input to a target. Raises what the target may not raise, and for a wordless no."""
    target = TARGETS[name]
    try:
        target.read(data, folder)
    except target.refusals as error:
        if not str(error).strip():
            raise ValueError("it is refused without a word") from error
