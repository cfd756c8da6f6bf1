"""The process that owns a rack's guest: boots it, relays requests, and stops it in between.

In real time the guest is the first process of namespaces of the machine, and is not stopped.

The supervisor listens on a socket in the rack's folder. A client sends one request, and further
messages that belong to it. It gets answers until one with `end`:

    {"do": "await"}     the progress of the boot, until the rack is up
    {"do": "status"}    the rack's status
    {"do": "down"}      end the rack
    anything else       is passed on to the guest (see `guest`)

The guest always ends with this process, and this process with the guest.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from orchestration.backends.emulated.host_kernel import own_namespaces_argv
from orchestration.kernel.boot import guest_argv, pinned_argv
from orchestration.virtual_rack import containers, control_groups
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.messages import (
    MAX_UNREAD,
    PIECE_BYTES,
    GuestOutbox,
    Message,
    MessageDecoder,
    encode,
)
from orchestration.virtual_rack.reaper import Reaper

# A program whose caller has disconnected gets SIGHUP; after this time it is killed.
_GRACE_S = 30.0
_BOOT_SILENCE_S = 180.0
_LAST_WORDS_S = 5.0
_CONSOLE_TAIL_BYTES = 1500


class Client:
    """A connected client, and the number of its request."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._writer = writer
        self.ended = asyncio.Event()

    def send(self, message: Message) -> None:
        """Send the client a message. A message with `end` is the last."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))
        if message.get("end"):
            self.ended.set()


class Supervisor:
    """One guest and its clients. With `pause_when_idle` the guest is stopped between requests."""

    def __init__(self, folder: RackFolder, *, pause_when_idle: bool = True) -> None:
        self._folder = folder
        self._pause_when_idle = pause_when_idle
        self._clients: dict[int, Client] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._busy: set[int] = set()
        self._inbox = GuestOutbox(folder.inbox)
        self._window = asyncio.Semaphore(MAX_UNREAD)
        self._ready = asyncio.Event()
        self._failed: Message = {}
        self._guest_spoke = asyncio.Event()
        self._guest: asyncio.subprocess.Process
        self._reaper = Reaper(folder)

    async def run(self, argv: list[str]) -> None:
        """Boot the guest with the command `argv`, and serve until it ends.

        SIGTERM and SIGINT end both in order.
        """
        loop = asyncio.get_running_loop()
        stop_requested = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_requested.set)
        with self._folder.console.open("ab") as console:
            self._guest = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=console,
                cwd=self._folder.guest,
                start_new_session=True,
            )
        server = await asyncio.start_unix_server(self._serve, path=self._folder.socket.name)
        tasks = [
            asyncio.create_task(self._listen(), name="listen"),
            asyncio.create_task(self._watch_boot(), name="boot"),
            asyncio.create_task(stop_requested.wait(), name="stop"),
        ]
        try:
            await asyncio.wait(
                [task for task in tasks if task.get_name() != "boot"],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            await self._end_guest()
            self._folder.socket.unlink(missing_ok=True)
            for client in self._clients.values():
                client.send({"end": True, **(self._failed or self._ended_message())})
            server.close()
            if self._serving:
                await asyncio.wait(self._serving, timeout=_LAST_WORDS_S)
            for task in tasks:
                task.cancel()

    async def _end_guest(self) -> None:
        """Kill the guest, give interfaces back, and wait until all of its processes have ended."""
        self._signal(signal.SIGKILL)
        await self._reaper.end()
        if not self._pause_when_idle:
            await asyncio.to_thread(containers.await_orphans)
            with suppress(OSError):  # `closloop clean` finds groups that stay
                await asyncio.to_thread(control_groups.remove, control_groups.own_group())

    def _ended_message(self) -> Message:
        last_output = self._folder.console.read_bytes()[-_CONSOLE_TAIL_BYTES:].decode(
            errors="replace"
        )
        return {
            "error": f"the rack's guest has ended; its last output:\n{last_output.strip()}",
            "remedy": "closloop rack up starts it again; if it was killed, memory was short",
        }

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._guest.pid, number)

    async def _watch_boot(self) -> None:
        """Kill the guest if it hangs while it boots."""
        while not self._ready.is_set():
            self._guest_spoke.clear()
            try:
                async with asyncio.timeout(_BOOT_SILENCE_S):
                    await self._guest_spoke.wait()
            except TimeoutError:
                self._failed = {
                    "error": f"the guest hangs: no message for {_BOOT_SILENCE_S:.0f} s of its boot",
                    "remedy": f"see {self._folder.console}",
                }
                self._signal(signal.SIGKILL)
                return

    async def _listen(self) -> None:
        """Read the guest's messages, and act on them, until it ends."""
        assert self._guest.stdout is not None
        decoder = MessageDecoder()
        while piece := await self._guest.stdout.read(PIECE_BYTES):
            self._guest_spoke.set()
            for message in decoder.feed(piece):
                self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        if "received" in message:
            self._window.release()
        elif "id" in message:
            number = message.pop("id")
            if client := self._clients.get(number):
                client.send(message)
            if message.get("end"):
                self._finish(number)
        elif "ready" in message:
            self._ready.set()
            self._pause()
        elif "lease" in message:
            self._lease_task = asyncio.create_task(self._lease_interfaces(message["lease"]))
        elif "failed" in message:
            remedy = message.get("remedy") or f"see {self._folder.console}"
            self._failed = {
                "error": f"the rack does not boot: {message['failed']}",
                "remedy": remedy,
            }
        else:
            for client in self._clients.values():
                client.send(message)

    async def _lease_interfaces(self, namespaces: Mapping[str, str]) -> None:
        """Let the reaper move leased interfaces into devices' namespaces, then inform the guest.

        `namespaces` are paths below the root of the guest's first process, by device.
        """
        layout = Layout.from_json(json.loads(self._folder.layout.read_text()))
        children = Path(f"/proc/{self._guest.pid}/task/{self._guest.pid}/children").read_text()
        first = Path("/proc", children.split()[0], "root")
        requests = {}
        for port, interface in layout.leased_ports:
            namespace = first / namespaces[port.device]
            requests[interface] = port.device, layout.interface(port), str(namespace)
        answer = await self._reaper.take_lease(requests)
        if "failed" in answer:
            remedy = "see ip -d link show; closloop clean gives back what is left"
            self._failed = {
                "error": f"the rack does not start: {answer['failed']}",
                "remedy": remedy,
            }
            self._signal(signal.SIGKILL)
        else:
            await self._send({"leased": True})

    def _finish(self, number: int) -> None:
        self._busy.discard(number)
        self._pause()

    def _pause(self) -> None:
        if self._pause_when_idle and not self._busy:
            self._signal(signal.SIGSTOP)

    async def _send(self, message: Message) -> None:
        """Send the guest a message, as soon as it has read enough of the earlier ones."""
        await self._window.acquire()
        assert self._guest.stdin is not None
        self._guest.stdin.write(self._inbox.put(message))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._numbers += 1
        client = Client(self._numbers, writer)
        self._clients[client.number] = client
        receiving = asyncio.create_task(self._receive(client, reader))
        try:
            done, _ = await asyncio.wait(
                [receiving, asyncio.create_task(client.ended.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            if receiving in done and client.number in self._busy:
                await self._abandon(client.number)
            with suppress(ConnectionError):
                await writer.drain()
        finally:
            del self._clients[client.number]
            receiving.cancel()
            writer.close()

    async def _abandon(self, number: int) -> None:
        """End the request of a client that has disconnected."""
        for kind, patience_s in ((signal.SIGHUP, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            await self._send({"id": number, "signal": int(kind)})
            for _ in range(int(patience_s * 10)):
                if number not in self._busy:
                    return
                await asyncio.sleep(0.1)

    async def _receive(self, client: Client, reader: asyncio.StreamReader) -> None:
        """Serve a client until it disconnects."""
        decoder = MessageDecoder()
        with suppress(ConnectionError):
            while piece := await reader.read(PIECE_BYTES):
                for message in decoder.feed(piece):
                    if "do" in message:
                        await self._begin(client, message)
                    elif client.number in self._busy:
                        await self._send({**message, "id": client.number})

    async def _begin(self, client: Client, message: Message) -> None:
        match message["do"]:
            case "status":
                state = "up" if self._ready.is_set() else "booting"
                busy = len(self._busy - {client.number})
                status = {"state": state, "busy": busy, "pid": os.getpid()}
                client.send({"end": True, "ok": {**status, "guest_pid": self._guest.pid}})
            case "down":
                self._failed = {"error": "the rack was taken down", "remedy": "closloop rack up"}
                client.send({"end": True, "ok": None})
                os.kill(os.getpid(), signal.SIGTERM)
            case "await":
                await self._ready.wait()
                client.send({"end": True, "ok": None})
            case _:
                await self._ready.wait()
                self._busy.add(client.number)
                self._signal(signal.SIGCONT)
                await self._send({**message, "id": client.number})


def main() -> None:
    """Run the supervisor. Arguments: FOLDER [KERNEL MEMORY_BYTES MEMORY_DIR virtual|real].

    Without a kernel the guest is made of namespaces of the machine's own kernel.
    """
    folder = RackFolder(Path(sys.argv[1]))
    if not sys.argv[2:]:
        os.environ[containers.GROUP_VARIABLE] = group = control_groups.own_group()
        control_groups.remove_after_exit(group)
        containers.adopt_orphans()
        supervisor = Supervisor(folder, pause_when_idle=False)
        asyncio.run(supervisor.run(own_namespaces_argv(folder.init)))
        return
    kernel, memory_bytes, memory_dir = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    real_time = sys.argv[5] == "real"
    argv = guest_argv(kernel, memory_bytes=memory_bytes, init=folder.init, real_time=real_time)
    # The first console goes to the log; the second connects guest and supervisor.
    argv = [word for word in argv if not word.startswith("con0=")]
    argv += ["con0=null,fd:2", "con1=fd:0,fd:1"]
    os.environ["TMPDIR"] = memory_dir
    # one CPU, for speed (docs/kernel.md), but not the same for every rack
    cpus = sorted(os.sched_getaffinity(0))
    cpu = cpus[os.getpid() % len(cpus)]
    asyncio.run(Supervisor(folder).run(pinned_argv(argv, cpu)))


if __name__ == "__main__":
    main()
