"""`closloop import flows`: make a file of flows to replay out of captures and flow records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from inventory.files import load_testbed
from inventory.strictyaml import in_order, read, suggest
from orchestration.cli.options import Json
from orchestration.cli.terminal import print_json, waiting
from orchestration.core.csv_columns import open_bytes, write_csv
from orchestration.core.errors import InputError, check_known
from orchestration.core.files import whole_file
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_size, parse_duration_ns
from orchestration.exchange.capture import read_capture
from orchestration.exchange.csv_flows import read_csv_records
from orchestration.exchange.netflow_sflow import read_nfdump, read_sflowtool
from orchestration.exchange.records import FlowRecord, RecordedFlows, check_without
from orchestration.exchange.source import new_path, parse_quantity

# For each kind of file, after which idle time of a five-tuple a flow ends by default.
DEFAULT_IDLE = {"capture": "100ms", "nfdump": "15s", "sflowtool": "15s", "csv": "0s"}
# The first bytes of pcap (in us and ns, in both byte orders), of pcapng and of gzip.
_MAGICS = tuple(
    map(bytes.fromhex, ["a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a", "1f8b"])
)


@dataclass(frozen=True)
class ReplayFile:
    """A written file of flows, with notes on it.

    `hosts` maps addresses to hosts, and `assigned` says whether that was done here, in order of
    appearance. `dropped` counts the dropped flows of each address that is no host.
    """

    path: Path
    source: str
    flows: int
    size_bytes: int
    duration_ns: int
    hosts: dict[str, str]
    assigned: bool
    dropped: dict[str, int]
    dropped_flows: int
    notes: tuple[str, ...]


def import_flows(
    file: Annotated[Path, "A capture, nfdump's CSV, sflowtool's output, or a CSV of your own."],
    *,
    testbed: Annotated[str, "The testbed whose hosts stand for the addresses."],
    out: Annotated[Path, "--out", "-o", "The CSV file to write."],
    kind: Annotated[str, "--from", "capture, nfdump, sflowtool or csv (default: by content)."] = "",
    hosts: Annotated[
        Path | None, "A YAML file with a line `10.0.0.1: h1` for each address."
    ] = None,
    idle: Annotated[
        str, "After this idle time a flow ends (default: captures 100ms, flow records 15s)."
    ] = "",
    mapping: Annotated[Path | None, "The mapping file of a CSV of your own."] = None,
    without: Annotated[
        list[str], "Leave out packets that are not read yet: roce or tunnels; repeat it for both."
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Make flows to replay out of what a network carried: a capture or exporters' flow records.

    Without --hosts, each new address becomes the testbed's next host. Flows from or to an address
    without a host are dropped and counted. RoCE and tunnels are refused unless --without leaves
    them out; other packets that flows are not made of are counted.

    Examples: closloop import flows rack.pcap --testbed graphcc --hosts hosts.yml -o flows.csv

    closloop import flows records.csv --from nfdump --testbed graphcc -o flows.csv
    """
    fabric = load_testbed(testbed)
    chosen = kind or ("csv" if mapping else kind_of(file))
    with waiting("reading"):
        idle_ns = parse_quantity("--idle", idle, parse_duration_ns)
        recorded, mapped_hosts = read_records(file, chosen, idle_ns, mapping, without)
        host_of = read_hosts(hosts, fabric) if hosts else mapped_hosts or None
        written = write_replay(out, recorded, fabric, host_of)
    if as_json:
        print_json({**asdict(written), "path": str(out)})
    else:
        _print_replay(written)


def _print_replay(written: ReplayFile) -> None:
    typer.echo(
        f"{written.path}: {written.flows} flows of {format_size(written.size_bytes)} within "
        f"{format_duration(written.duration_ns)}, from {written.source}"
    )
    if written.assigned:
        pairs = [f"{address} = {host}" for address, host in written.hosts.items()]
        more = f" and {len(pairs) - 8} more" if len(pairs) > 8 else ""
        typer.echo(f"  hosts in order of appearance: {', '.join(pairs[:8])}{more}")
    if written.dropped_flows:
        worst = [f"{address} ({count})" for address, count in list(written.dropped.items())[:5]]
        typer.echo(
            f"  dropped: {written.dropped_flows} flows of addresses that are no hosts of the "
            f"testbed: {', '.join(worst)}"
        )
    for note in written.notes:
        typer.echo(f"  note: {note}")
    typer.echo(f"next, in a campaign file: traffic: [{{kind: replay, file: {written.path}}}]")


def kind_of(path: Path) -> str:
    """Return the kind of a file of flows, by its first bytes. Raises InputError if unknown."""
    with open_bytes(path) as file:
        start = file.read(4096)
    if start.startswith(_MAGICS):
        return "capture"
    first = start.split(b"\n", 1)[0]
    if first.startswith((b"ts,", b"firstSeen,")):
        return "nfdump"
    if first.startswith((b"startDatagram", b"unixSecondsUTC")):
        return "sflowtool"
    raise InputError.single(
        str(path),
        "is neither a capture, nfdump's CSV nor sflowtool's output",
        "name its kind with --from; for a CSV of your own add --mapping FILE",
    )


def read_records(
    path: Path,
    kind: str,
    idle_ns: int | None,
    mapping: Path | None,
    without: Sequence[str] = (),
) -> tuple[RecordedFlows, dict[str, str]]:
    """Return a file's flow records, and the `hosts` of its mapping file.

    `without` names kinds of packets or records to leave out, which are refused otherwise
    (orchestration/exchange/records.py). Raises InputError.
    """
    check_without(without)
    check_known("--from", "unknown kind {!r}", [kind], DEFAULT_IDLE)
    idle = parse_duration_ns(DEFAULT_IDLE[kind]) if idle_ns is None else idle_ns
    if kind == "csv":
        if mapping is None:
            what = "a CSV of your own needs a mapping file, which says which column is what"
            raise InputError.single("--mapping", what, "add --mapping FILE")
        if without:
            what = "a CSV of flows has no packets to leave out"
            raise InputError.single("--without", what, "leave it out")
        return read_csv_records(path, mapping)
    reader = {"capture": read_capture, "nfdump": read_nfdump, "sflowtool": read_sflowtool}[kind]
    return reader(path, idle, without), {}


def read_hosts(path: Path, testbed: Testbed) -> dict[str, str]:
    """Return the map of addresses to hosts in a file. Raises InputError with all problems in it."""
    document = read(path)
    if document.faults:
        raise InputError(in_order(document.faults))
    hosts = {str(address): str(name) for address, name in document.data.items()}
    for address, name in hosts.items():
        if name not in testbed.hosts:
            what = f"{address} is {name!r}, which testbed {testbed.name} does not have"
            remedy = f"{suggest(name, testbed.hosts)}write lines like 10.0.0.1: {testbed.hosts[0]}"
            raise InputError.single(str(path), what, remedy)
    return hosts


def write_replay(
    out: Path, recorded: RecordedFlows, testbed: Testbed, hosts: dict[str, str] | None
) -> ReplayFile:
    """Write flows as `start_ns,src,dst,bytes,class`, the first one at 0; return what was written.

    Without `hosts`, the addresses are names of the testbed's hosts if all of them are; else each
    new address becomes the testbed's next host. Flows of an address without a host are dropped.
    Raises InputError if no flow is left, or if `out` exists.
    """
    known = _in_order_of_appearance(recorded.records, testbed) if hosts is None else hosts
    kept, lost, itself = _split_by_hosts(recorded.records, known)
    dropped = Counter(
        address for record in lost for address in (record.src, record.dst) if address not in known
    )
    if not recorded.records:
        why = f": {'; '.join(recorded.notes)}" if recorded.notes else ""
        what = f"no flow is left of {recorded.source}{why}"
        remedy = "give a file with payload over TCP or UDP"
        raise InputError.single(str(out), what, remedy)
    if not kept:
        count = f"{len(lost)} of {len(lost) + itself}"
        what = f"no flow is left: {count} are of addresses that are no hosts of {testbed.name}"
        raise InputError.single(str(out), what, "say which address is which host: --hosts FILE")
    first_ns = min(record.start_ns for record in kept)
    number = {name: index for index, name in enumerate(testbed.hosts)}
    kept.sort(key=lambda r: (r.start_ns, number[known[r.src]], number[known[r.dst]]))
    columns: dict[str, list[object]] = {
        "start_ns": [record.start_ns - first_ns for record in kept],
        "src": [known[record.src] for record in kept],
        "dst": [known[record.dst] for record in kept],
        "bytes": [record.size_bytes for record in kept],
        "class": [record.klass for record in kept],
    }
    with new_path(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(out) as partial:
            write_csv(partial, columns)
    notes = list(recorded.notes)
    if itself:
        notes.append(f"{itself} flows go from a host to itself and are dropped")
    return ReplayFile(
        path=out,
        source=recorded.source,
        flows=len(kept),
        size_bytes=sum(record.size_bytes for record in kept),
        duration_ns=kept[-1].start_ns - first_ns,
        hosts=known,
        assigned=hosts is None,
        dropped=dict(dropped.most_common()),
        dropped_flows=len(lost),
        notes=tuple(notes),
    )


def _in_order_of_appearance(records: Iterable[FlowRecord], testbed: Testbed) -> dict[str, str]:
    seen = dict.fromkeys(address for record in records for address in (record.src, record.dst))
    if all(address in testbed.hosts for address in seen):
        return {address: address for address in seen}
    return dict(zip(seen, testbed.hosts, strict=False))


def _split_by_hosts(
    records: Sequence[FlowRecord], hosts: dict[str, str]
) -> tuple[list[FlowRecord], list[FlowRecord], int]:
    """Return flows between two hosts, flows of unknown addresses, and the number within a host."""
    kept, lost, itself = [], [], 0
    for record in records:
        if record.src not in hosts or record.dst not in hosts:
            lost.append(record)
        elif hosts[record.src] == hosts[record.dst]:
            itself += 1
        else:
            kept.append(record)
    return kept, lost, itself
