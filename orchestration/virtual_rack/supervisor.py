"""The process that owns a rack's guest: it boots it, relays requests, and stops it in between.

In real time the guest is the first process of namespaces of the machine, and goes on in between.

It listens on a socket in the rack's folder. A client sends one request and further messages that
belong to it. It gets answers until one with `end`:

    {"do": "await"}     the progress of the boot, until the rack is up
    {"do": "status"}    the rack's status
    {"do": "down"}      end the rack
    anything else       goes to the guest (see `guest`)

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

from orchestration.backends.emulated.machine import own_namespaces_argv
from orchestration.kernel.boot import guest_argv, held_argv
from orchestration.virtual_rack import containers, groups
from orchestration.virtual_rack.commands import (
    PIECE_BYTES,
    UNREAD,
    Lines,
    Message,
    Outgoing,
    encode,
)
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.reaper import Reaper

# A program whose caller has gone gets a signal to end; after this long it is killed.
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

    def tell(self, message: Message) -> None:
        """Send a message; one with `end` is the last."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))
        if message.get("end"):
            self.ended.set()


class Supervisor:
    """One guest and its clients."""

    def __init__(self, folder: RackFolder, *, pauses: bool = True) -> None:
        self._folder = folder
        self._pauses = pauses
        self._clients: dict[int, Client] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._busy: set[int] = set()
        self._inbox = Outgoing(folder.inbox)
        self._window = asyncio.Semaphore(UNREAD)
        self._ready = asyncio.Event()
        self._failed: Message = {}
        self._heard = asyncio.Event()
        self._guest: asyncio.subprocess.Process
        self._keeper = Reaper(folder)

    async def run(self, argv: list[str]) -> None:
        """Boot the guest and serve until it ends or this process gets a signal to end."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
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
            asyncio.create_task(over.wait(), name="over"),
        ]
        try:
            await asyncio.wait(
                [task for task in tasks if task.get_name() != "boot"],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._signal(signal.SIGKILL)
            await self._keeper.end()
            if not self._pauses:
                await asyncio.to_thread(containers.await_orphans)
                with suppress(OSError):  # `groups.leftovers` finds it
                    await asyncio.to_thread(groups.remove, groups.own_group())
            self._folder.socket.unlink(missing_ok=True)
            for client in self._clients.values():
                client.tell({"end": True, **(self._failed or self._death())})
            server.close()
            if self._serving:
                await asyncio.wait(self._serving, timeout=_LAST_WORDS_S)
            for task in tasks:
                task.cancel()

    def _death(self) -> Message:
        said = self._folder.console.read_bytes()[-_CONSOLE_TAIL_BYTES:].decode(errors="replace")
        return {
            "error": f"the rack's guest has ended; its console's last words:\n{said.strip()}",
            "remedy": "closloop rack up starts it again; if it was killed, it lacked memory",
        }

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._guest.pid, number)

    async def _watch_boot(self) -> None:
        """End a guest that hangs while it boots."""
        while not self._ready.is_set():
            self._heard.clear()
            try:
                async with asyncio.timeout(_BOOT_SILENCE_S):
                    await self._heard.wait()
            except TimeoutError:
                self._failed = {
                    "error": f"the guest hangs: silent for {_BOOT_SILENCE_S:.0f} s while it boots",
                    "remedy": f"see {self._folder.console}",
                }
                self._signal(signal.SIGKILL)
                return

    async def _listen(self) -> None:
        """Pass on the guest's messages until it ends."""
        assert self._guest.stdout is not None
        lines = Lines()
        while piece := await self._guest.stdout.read(PIECE_BYTES):
            self._heard.set()
            for message in lines.feed(piece):
                self._take(message)

    def _take(self, message: Message) -> None:
        if "took" in message:
            self._window.release()
        elif "id" in message:
            number = message.pop("id")
            if client := self._clients.get(number):
                client.tell(message)
            if message.get("end"):
                self._free(number)
        elif "ready" in message:
            self._ready.set()
            self._pause()
        elif "borrow" in message:
            self._lending = asyncio.create_task(self._lend(message["borrow"]))
        elif "failed" in message:
            remedy = message.get("remedy") or f"see {self._folder.console}"
            self._failed = {
                "error": f"the rack does not boot: {message['failed']}",
                "remedy": remedy,
            }
        else:
            for client in self._clients.values():
                client.tell(message)

    async def _lend(self, namespaces: Mapping[str, str]) -> None:
        """Move interfaces of the machine into devices' namespaces, and tell the guest."""
        layout = Layout.from_json(json.loads(self._folder.layout.read_text()))
        children = Path(f"/proc/{self._guest.pid}/task/{self._guest.pid}/children").read_text()
        first = Path("/proc", children.split()[0], "root")
        wanted = {}
        for port, interface in layout.ports_lent:
            place = first / namespaces[port.device]
            wanted[interface] = port.device, layout.interface(port), str(place)
        answer = await self._keeper.take_lease(wanted)
        if "failed" in answer:
            remedy = "see ip -d link show; closloop clean gives back what is left"
            self._failed = {"error": f"no rack: {answer['failed']}", "remedy": remedy}
            self._signal(signal.SIGKILL)
        else:
            await self._send({"lent": True})

    def _free(self, number: int) -> None:
        self._busy.discard(number)
        self._pause()

    def _pause(self) -> None:
        if self._pauses and not self._busy:
            self._signal(signal.SIGSTOP)

    async def _send(self, message: Message) -> None:
        """Send the guest a message: as a file, whose number goes over the line (see `Outgoing`)."""
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
        hearing = asyncio.create_task(self._hear(client, reader))
        try:
            done, _ = await asyncio.wait(
                [hearing, asyncio.create_task(client.ended.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            if hearing in done and client.number in self._busy:
                await self._abandon(client.number)
            with suppress(ConnectionError):
                await writer.drain()
        finally:
            del self._clients[client.number]
            hearing.cancel()
            writer.close()

    async def _abandon(self, number: int) -> None:
        """End the request of a client that has gone."""
        for kind, patience_s in ((signal.SIGHUP, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            await self._send({"id": number, "signal": int(kind)})
            for _ in range(int(patience_s * 10)):
                if number not in self._busy:
                    return
                await asyncio.sleep(0.1)

    async def _hear(self, client: Client, reader: asyncio.StreamReader) -> None:
        """Serve a client until it disconnects."""
        lines = Lines()
        with suppress(ConnectionError):
            while piece := await reader.read(PIECE_BYTES):
                for message in lines.feed(piece):
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
                client.tell({"end": True, "ok": {**status, "guest_pid": self._guest.pid}})
            case "down":
                self._failed = {"error": "the rack was taken down", "remedy": "closloop rack up"}
                client.tell({"end": True, "ok": None})
                os.kill(os.getpid(), signal.SIGTERM)
            case "await":
                await self._ready.wait()
                client.tell({"end": True, "ok": None})
            case _:
                await self._ready.wait()
                self._busy.add(client.number)
                self._signal(signal.SIGCONT)
                await self._send({**message, "id": client.number})


def main() -> None:
    """Hold the guest of a rack: FOLDER [KERNEL MEMORY_BYTES MEMORY_DIR virtual|real].

    Without a kernel it is the machine's own.
    """
    folder = RackFolder(Path(sys.argv[1]))
    if not sys.argv[2:]:
        os.environ[containers.GROUP] = group = groups.own_group()
        groups.watch_over(group)
        containers.adopt_orphans()
        supervisor = Supervisor(folder, pauses=False)
        asyncio.run(supervisor.run(own_namespaces_argv(folder.init)))
        return
    kernel, memory_bytes, memory_dir = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    real_time = sys.argv[5] == "real"
    argv = guest_argv(kernel, memory_bytes=memory_bytes, init=folder.init, real_time=real_time)
    # The first console goes to the log; the second is the line between guest and supervisor.
    argv = [word for word in argv if not word.startswith("con0=")]
    argv += ["con0=null,fd:2", "con1=fd:0,fd:1"]
    os.environ["TMPDIR"] = memory_dir
    # one CPU, for speed (docs/kernel.md), but not the same for every rack
    cpus = sorted(os.sched_getaffinity(0))
    cpu = cpus[os.getpid() % len(cpus)]
    asyncio.run(Supervisor(folder).run(held_argv(argv, cpu)))


if __name__ == "__main__":
    main()
