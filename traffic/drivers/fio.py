"""fio: block traffic between hosts, as storage produces it, with fio's own network engine.

Each flow is a pair of fio jobs over TCP: the receiver listens and reads, the sender connects and
writes blocks back to back or at a rate. `fio --client` with `fio --server` is not used: with these
only commands and statistics cross the network, while the data stays on the server's disks.

A flow's bytes are rounded up to whole blocks, because fio moves only whole blocks. The flow ends
when the sender closes the connection and the receiver has read everything. The receiver does not
know the flow's size. The reason is a fault of fio's network engine (3.33 to 3.41): if a block
arrives in pieces, the engine counts the rest of it only once. A receiver that stopped by its own
count would stop early and break the sender's connection. For the same reason its `io_bytes` are too
low.

fio takes 0.1 to 0.3 s to begin (it measures its clocks, then sleeps) and polls for the end of its
jobs every 10 ms. So its flows start late, and their times are accurate to about 30 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from traffic.drivers.output import (
    BY_HAND,
    OutputError,
    excerpt,
    json_documents,
    number,
    unrecognized_output,
)
from traffic.drivers.programs import (
    Flow,
    FlowFailed,
    Launch,
    Option,
    Options,
    Outcome,
    Output,
    ProgramDriver,
    completed,
    failure_reason,
    server_and_client,
)

_NAME = "fio"
# More than the size of any flow: the receiver reads until the sender closes.
_ENDLESS_BYTES = 1 << 40


@dataclass(frozen=True)
class Job:
    """What a fio job has transferred; `error` is an errno, 0 for none."""

    error: int
    written_bytes: int
    reading_ns: int


def parse_json(text: str) -> Job:
    """Return the job in an output of `--output-format=json`.

    Other lines before the document are skipped. Raises OutputError with fio's own error, or for an
    output that is cut short, not fio's, or of several jobs.
    """
    try:
        document = json_documents(_NAME, text)[-1]
    except OutputError:
        if "{" not in text and (why := _error_message(text)):
            raise OutputError(_NAME, why, BY_HAND) from None
        raise
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or not jobs or not isinstance(jobs[0], dict):
        raise unrecognized_output(_NAME, text)
    if len(jobs) != 1:
        raise OutputError(_NAME, f"it reports {len(jobs)} jobs where one ran")
    return Job(
        error=int(number(_NAME, jobs[0], "error")),
        written_bytes=int(number(_NAME, jobs[0], "write", "io_bytes")),
        reading_ns=int(number(_NAME, jobs[0], "read", "runtime")) * 1_000_000,
    )


_ERROR = re.compile(r"error=(.+)$")


def _error_message(text: str) -> str:
    """Return the last of fio's error messages, without its location in fio's source."""
    messages = [line for line in text.splitlines() if line.startswith("fio: ")]
    messages = [line for line in messages if "waiting for connection" not in line]
    if not messages:
        return ""
    match = _ERROR.search(messages[-1])
    return excerpt(match[1] if match else messages[-1].removeprefix("fio: "))


class Fio(ProgramDriver):
    """Sends flows with fio."""

    name = _NAME
    marks = False
    options = (
        Option("block", 131_072, "bytes of a block", 1, 1 << 26, unit="bytes"),
        Option("rate", 0, "bits/s of a flow; 0 means no limit", 0, unit="bps"),
        Option("nodelay", True, "send each block at once (TCP_NODELAY)"),
    )

    def _conflicts(
        self, values: Mapping[str, Any], given: Options, testbed: object
    ) -> Iterator[tuple[str, str]]:
        if 0 < values["rate"] < 8:
            yield "rate", f"rate is {values['rate']} bits/s: give at least 8"

    def launches(self, flow: Flow, options: Options) -> tuple[Launch, Launch]:
        """Return the commands of the receiver (server) and the sender (client)."""
        values = self.values(options)
        block = min(values["block"], flow.size_bytes)
        size = -(-flow.size_bytes // block) * block
        # the engine's own options are known only after its name
        common = (
            "fio",
            f"--name=flow{flow.number}",
            "--thread",
            "--output-format=json",
            # without this it leaves a file in its working folder
            "--verify_state_save=0",
            # its default is the CPU's counter, which does not follow virtual time
            "--clocksource=clock_gettime",
            "--ioengine=net",
            "--protocol=tcp",
            f"--port={flow.port}",
            f"--bs={block}",
        )
        server = [*common, f"--size={max(_ENDLESS_BYTES, 2 * size)}", "--rw=read", "--listen"]
        client = [*common, f"--size={size}", "--rw=write", f"--hostname={flow.dst_address}"]
        if values["nodelay"]:
            client.append("--nodelay=1")
        if values["rate"]:
            client.append(f"--rate={values['rate'] // 8}")
        return server_and_client(flow, server, client)

    def _cut_off(self, server: Output, client: Output) -> bool:
        return client.stopped or (server.stopped and not client.exit_code)

    def _result(self, flow: Flow, server: Output, client: Output) -> Outcome:
        """Return the outcome. The flow is done when the receiver has seen the connection's end."""
        for output, role in ((client, "sender"), (server, "receiver")):
            if why := failure_reason(_NAME, output, role):
                text = output.stdout + output.stderr if output.exit_code > 0 else ""
                message = _error_message(text)
                raise FlowFailed(f"{_NAME} {role}: {message}" if message else why)
        sender, receiver = (parse_json(output.stdout) for output in (client, server))
        sent = sender.written_bytes
        if sender.error or receiver.error or sent < flow.size_bytes:
            raise FlowFailed(f"{_NAME}: it sent {sent} of {flow.size_bytes} bytes")
        # fio counts in ms, so the times of the processes are used for a transfer of less than 1 ms
        return completed(client, receiver.reading_ns or None, end_ns=server.ended_ns)
