"""What goes wrong with one device, by name, and what to do about it."""

from __future__ import annotations

from orchestration.model.errors import ClosloopError

_SHOWN = 300


class DeviceError(ClosloopError):
    """A device refuses, or answers badly. `device` names it; `what` is the message without it."""

    exit_code = 3

    def __init__(self, device: str, what: str, remedy: str = "") -> None:
        super().__init__(f"{device}: {what}", remedy)
        self.device = device
        self.what = what


class DeviceGone(DeviceError):  # noqa: N818 (names what is so, like Interrupted)
    """The connection to a device is lost, or the device does not answer in time."""


class LoginRefused(DeviceError):  # noqa: N818
    """A device cannot be logged in to: its key is unknown, or ours or the user is refused."""


def printable(text: str | bytes) -> str:
    """Return what a device said as one line that is safe to show: it is data, not instructions."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"


def unreadable(device: str, what: str, error: Exception) -> DeviceError:
    """Return the error for something that a device's agent sends and nobody can read."""
    said = printable(f"{type(error).__name__}: {error}")
    remedy = "see whether something changes what its agent sends"
    return DeviceError(device, f"{what} cannot be read: {said}", remedy)
