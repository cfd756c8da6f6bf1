"""Errors of a single device, with its name and the remedy."""

from __future__ import annotations

from orchestration.core.errors import ClosloopError, Code, Problem

# How many characters of a device's output are shown.
_MAX_SHOWN = 300


class DeviceError(ClosloopError):
    """A device refuses a request, or answers wrongly. `what` is the message without its name."""

    exit_code = 3
    code = Code.DEVICE_REFUSED

    def __init__(self, device: str, what: str, remedy: str = "") -> None:
        super().__init__([Problem(device, what, remedy, self.code)])
        self.device = device
        self.what = what

    @property
    def alone(self) -> Problem:
        """The problem without the device's name, for messages that have it already."""
        return self.problems[0].relocated("")


class DeviceGone(DeviceError):  # noqa: N818 (names a state, like Interrupted)
    """The connection to a device is lost, or the device does not answer in time."""

    code = Code.DEVICE_GONE


def lost(device: str, why: str) -> DeviceGone:
    """Return the error for a connection that has ended; `why` may be empty."""
    return DeviceGone(
        device,
        f"the connection is lost ({why or 'closed'})",
        "see whether the device still runs; `closloop restore` puts back what it can reach",
    )


def silent(device: str, what: str) -> DeviceGone:
    """Return the error for an agent that does not answer; `what` says so."""
    return DeviceGone(
        device, what, "see whether the device is overloaded or the network to it is down"
    )


class LoginRefused(DeviceError):  # noqa: N818
    """Logging in failed: the host key is unknown, or the device refuses our key or user."""

    code = Code.LOGIN_REFUSED


def printable(text: str | bytes) -> str:
    """Return a device's output as one line that is safe to show on a terminal."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 1] + "…"


def unreadable(device: str, what: str, error: Exception) -> DeviceError:
    """Return the error for an answer of an agent that cannot be decoded."""
    reason = printable(f"{type(error).__name__}: {error}")
    remedy = "see whether something changes what its agent sends"
    return DeviceError(device, f"{what} cannot be read: {reason}", remedy)
