"""The reaper: a process that gives leased interfaces back to the machine, whatever ends the rack.

    python -m orchestration.virtual_rack.reaper RACK_FOLDER SUPERVISOR_PID

It runs in a session of its own, so that it outlives every other process of the rack. Requests to
take leases arrive on its standard input. When that is closed, as it is when the supervisor ends,
the reaper gives back all interfaces that its rack holds. If the reaper is killed, the supervisor
starts another one; if both are killed, `closloop clean` gives the interfaces back.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestration.agent.safety.deadman_process import Process
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.interface_leases import leases, return_interface, take_lease
from orchestration.virtual_rack.messages import PIECE_BYTES, Message, MessageDecoder, encode

# How often a reaper that fails while it gives interfaces back is started.
_TRIES = 3
_RETRY_S = 0.2


class Reaper:
    """The supervisor's side of its reaper process."""

    def __init__(self, folder: RackFolder) -> None:
        self._folder = folder
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._monitor_task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process
        self._ending = False

    async def take_lease(self, requests: Mapping[str, tuple[str, str, str]]) -> Message:
        """Lease interfaces; return the reaper's answer: `{"leased": true}` or `{"failed": text}`.

        `requests` are triples by interface: device, name of the port, path of the device's network
        namespace.
        """
        await self._start()
        self._monitor_task = asyncio.create_task(self._monitor())
        assert self._process.stdin is not None
        self._process.stdin.write(encode({"lease": dict(requests)}))
        return await self._answers.get()

    async def end(self) -> None:
        """Let the reaper give all interfaces back, and wait until it has."""
        self._ending = True
        if self._monitor_task is not None:
            self._close_input()
            await self._monitor_task

    async def _start(self) -> None:
        with self._folder.console.open("ab") as console:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "orchestration.virtual_rack.reaper"),
                *(str(self._folder.path), str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=console,
                cwd="/",
                start_new_session=True,
            )

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _monitor(self) -> None:
        """Collect the reaper's answers, and start another reaper if it is killed."""
        failed = 0
        while failed < _TRIES:
            assert self._process.stdout is not None
            decoder = MessageDecoder()
            while piece := await self._process.stdout.read(PIECE_BYTES):
                for message in decoder.feed(piece):
                    self._answers.put_nowait(message)
            code = await self._process.wait()
            if self._ending and code == 0:
                return
            failed += self._ending
            self._answers.put_nowait({"failed": "its reaper was killed"})
            await asyncio.sleep(_RETRY_S)
            await self._start()
            if self._ending:
                self._close_input()


def main() -> int:
    """Take leases and give interfaces back; return 1 if one could not be given back."""
    rack, owner = Path(sys.argv[1]), Process.of(int(sys.argv[2]))
    decoder = MessageDecoder()
    while piece := os.read(sys.stdin.fileno(), PIECE_BYTES):
        for message in decoder.feed(piece):
            os.write(sys.stdout.fileno(), encode(_take_leases(message["lease"], rack, owner)))
    code = 0
    for lease in leases(rack):
        try:
            print(f"{lease.interface} is given back: {return_interface(lease)}", file=sys.stderr)
        except (OSError, RuntimeError) as error:
            print(f"{lease.interface} is not given back: {error}", file=sys.stderr)
            code = 1
    return code


def _take_leases(
    requests: Mapping[str, tuple[str, str, str]], rack: Path, owner: Process
) -> Message:
    for interface, (device, port, namespace) in requests.items():
        try:
            take_lease(interface, device, port, rack, owner, Path(namespace))
        except (OSError, RuntimeError) as error:
            return {"failed": f"{interface} cannot be moved to {device}: {error}"}
    return {"leased": True}


if __name__ == "__main__":
    sys.exit(main())
