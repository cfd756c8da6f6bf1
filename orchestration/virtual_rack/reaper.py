"""The process that gives lent interfaces back, whatever ends the rack.

    python -m orchestration.virtual_rack.reaper RACK_FOLDER SUPERVISOR_PID

It is in a session of its own and dies with nobody. It lends what it is asked to on its standard
input; when that ends, as it does when the supervisor ends, it gives back all that its rack has. If
it is killed itself, the supervisor starts another one; if both are, `closloop clean` does its work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestration.agent.safety.deadman_process import Process
from orchestration.virtual_rack.commands import PIECE_BYTES, Lines, Message, encode
from orchestration.virtual_rack.folder import RackFolder
from orchestration.virtual_rack.interface_leases import loans, return_interface, take_lease

# One that ends by itself while it gives back is started again, so often.
_TRIES = 3
_AGAIN_S = 0.2


class Reaper:
    """The supervisor's side of its guardian."""

    def __init__(self, folder: RackFolder) -> None:
        self._folder = folder
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._minding: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process
        self._ending = False

    async def take_lease(self, wanted: Mapping[str, tuple[str, str, str]]) -> Message:
        """Lend interfaces, each to a device, its port and its namespace; return the answer."""
        await self._start()
        self._minding = asyncio.create_task(self._mind())
        assert self._process.stdin is not None
        self._process.stdin.write(encode({"lend": dict(wanted)}))
        return await self._answers.get()

    async def end(self) -> None:
        """Have everything given back."""
        self._ending = True
        if self._minding is not None:
            self._let_go()
            await self._minding

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

    def _let_go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _mind(self) -> None:
        """Pass on the guardian's answers, and replace one that is killed."""
        failed = 0
        while failed < _TRIES:
            assert self._process.stdout is not None
            lines = Lines()
            while piece := await self._process.stdout.read(PIECE_BYTES):
                for message in lines.feed(piece):
                    self._answers.put_nowait(message)
            code = await self._process.wait()
            if self._ending and code == 0:
                return
            failed += self._ending
            self._answers.put_nowait({"failed": "its guardian was killed"})
            await asyncio.sleep(_AGAIN_S)
            await self._start()
            if self._ending:
                self._let_go()


def main() -> int:
    """Lend and give back; return 1 if something could not be given back."""
    rack, owner = Path(sys.argv[1]), Process.of(int(sys.argv[2]))
    lines = Lines()
    while piece := os.read(sys.stdin.fileno(), PIECE_BYTES):
        for message in lines.feed(piece):
            os.write(sys.stdout.fileno(), encode(_lend(message["lend"], rack, owner)))
    code = 0
    for loan in loans(rack):
        try:
            print(f"{loan.interface} is given back: {return_interface(loan)}", file=sys.stderr)
        except (OSError, RuntimeError) as error:
            print(f"{loan.interface} is not given back: {error}", file=sys.stderr)
            code = 1
    return code


def _lend(wanted: Mapping[str, tuple[str, str, str]], rack: Path, owner: Process) -> Message:
    for interface, (device, port, namespace) in wanted.items():
        try:
            take_lease(interface, device, port, rack, owner, Path(namespace))
        except (OSError, RuntimeError) as error:
            return {"failed": f"{interface} cannot be moved to {device}: {error}"}
    return {"lent": True}


if __name__ == "__main__":
    sys.exit(main())
