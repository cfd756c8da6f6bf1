"""The agent's connection to the dead-man's timer: an abstract Unix socket, one for all accounts.

Any process of the device can bind the socket's name. So the client checks which process it is
(SO_PEERCRED, unix(7): the one that called listen). Only a timer of root or of this account is
trusted and given orders. If the timer belongs to another account, the device is reported as in use,
with the account and the process, because the timer may guard that account's run; but nothing that
it says is relied on.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Any

from ..main import Decoder, FrameError, OperationError, encode
from .deadman_process import Peer, peer
from .records import foreign_remedy
from .shared_folder import account_name

# Long, because the order `fire` is answered only after the device is restored.
_ANSWER_TIMEOUT_S = 60.0
# Another account's process may never answer, or may send more than a status.
_FOREIGN_TIMEOUT_S, _MAX_FOREIGN_BYTES = 2.0, 64 << 10
_MAX_SHOWN = 500
_READ_BYTES = 1 << 16


class TimerLink:
    """A connection to the timer at `address`, made when it is needed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._peer = Peer(0, 0)
        self._decoder = Decoder()

    def armed(self) -> dict[str, Any] | None:
        """Return the timer's status; None if no timer runs.

        `trusted` is false for another account's process. Then only `account`, `uid` and `pid` are
        certain, from the kernel; all else is what the process says. Raises OperationError if the
        socket cannot be connected to.
        """
        link = self._connect()
        if link is None:
            return None
        if self._is_trusted():
            status = self.order("status")
            return None if status is None else {**status, "trusted": True}
        peer_process = self._peer
        answer = _foreign_answer(link)
        self.forget()
        return _foreign(peer_process, answer)

    def order(self, order: str, **arguments: Any) -> dict[str, Any] | None:
        """Send an order and return the timer's answer; None if no timer runs.

        Raises OperationError if the timer refuses it, or belongs to another account.
        """
        for _ in range(2):
            link = self._connect()
            if link is None:
                return None
            if not self._is_trusted():
                armed = self.armed()
                if armed is None:
                    return None
                raise armed_error(armed)
            # a connection to an earlier timer is stale: connect once more
            with suppress(OSError, FrameError, EOFError):
                link.sendall(encode({"order": order, **arguments}))
                answer = self._answer(link)
                if "error" in answer and "remedy" in answer:
                    raise OperationError(answer["error"], answer["remedy"])
                return answer
            self.forget()
        return None

    def forget(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _connect(self) -> socket.socket | None:
        if self._socket is not None:
            return self._socket
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(_ANSWER_TIMEOUT_S)
        try:
            link.connect(self._address)
        except ConnectionRefusedError:
            link.close()
            return None
        except OSError as error:
            link.close()
            raise name_taken_error("takes no connection") from error
        self._socket, self._decoder, self._peer = link, Decoder(), peer(link)
        return link

    def _is_trusted(self) -> bool:
        return self._peer.uid in (0, os.geteuid())

    def _answer(self, link: socket.socket) -> dict[str, Any]:
        while True:
            piece = link.recv(_READ_BYTES)
            if not piece:
                raise EOFError
            for message in self._decoder.feed(piece):
                return message


def armed_error(armed: dict[str, Any]) -> OperationError:
    """Return the error for a device whose timer another run has armed."""
    who = f"its dead-man's timer is armed by {armed['holder']} (account {armed['account']})"
    if armed["trusted"]:
        return OperationError(
            f"{who} since {armed['armed_at']}; it restores the device in "
            f"{armed['left_s']:.0f} s unless that run goes on",
            "wait for that run to end; if it is dead, wait for the timer, or run "
            "`closloop restore`",
        )
    return OperationError(
        f"{who}, process {armed['pid']}, which is not this account's and not root's, so it is not "
        f"trusted (it says that it restores the device in {armed['left_s']:.0f} s)",
        "wait for that run to end, or for its timer; if it is not a run, end the process as root "
        f"(kill {armed['pid']}, or what `ss -xap | grep closloop-deadman` names); if the device is "
        f"refused after that, "
        f"{foreign_remedy(armed['account'])}",
    )


def name_taken_error(why: str) -> OperationError:
    """Return the error for an unknown process that has bound the socket's name."""
    return OperationError(
        f"the name of its dead-man's timer's socket is taken by a process that {why}",
        "`ss -xap | grep closloop-deadman` as root names the process; end it",
    )


def _foreign_answer(link: socket.socket) -> dict[str, Any]:
    """Return the status that another account's process gives within a short time, else {}."""
    decoder, deadline = Decoder(_MAX_FOREIGN_BYTES), time.monotonic() + _FOREIGN_TIMEOUT_S
    with suppress(OSError, FrameError, RecursionError):
        link.settimeout(_FOREIGN_TIMEOUT_S)
        link.sendall(encode({"order": "status"}))
        while (left_s := deadline - time.monotonic()) > 0:
            link.settimeout(left_s)
            piece = link.recv(_READ_BYTES)
            if not piece:
                break
            for message in decoder.feed(piece):
                return message
    return {}


def _foreign(peer_process: Peer, answer: dict[str, Any]) -> dict[str, Any]:
    def text(name: str) -> str:
        value = answer.get(name)
        return value[:_MAX_SHOWN] if isinstance(value, str) else ""

    left_s: Any = answer.get("left_s")
    return {
        "holder": text("holder") or "a process that does not say what it is",
        **{name: text(name) for name in ("nonce", "note", "armed_at")},
        "account": account_name(peer_process.uid),
        "uid": peer_process.uid,
        "pid": peer_process.pid,
        "left_s": float(left_s) if type(left_s) in (int, float) and 0 <= left_s < 1e9 else 0.0,
        "trusted": False,
    }
