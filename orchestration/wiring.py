"""The one place that knows which class is behind a backend's name. Each loads when asked for."""

from __future__ import annotations

from orchestration.model.errors import InputError
from orchestration.model.ports import Backend


def _fake() -> Backend:
    from orchestration.backends.fake.backend import FakeBackend

    return FakeBackend()


def _emulated() -> Backend:
    from orchestration.backends.emulated.backend import EmulatedBackend

    return EmulatedBackend()


_BACKENDS = {"emulated": _emulated, "fake": _fake}


def backend(name: str) -> Backend:
    """Return a new backend. Raises InputError, naming the known ones, for any other name."""
    if name not in _BACKENDS:
        known = ", ".join(sorted(_BACKENDS))
        raise InputError.single("backend", f"no backend is called {name!r}", f"known are {known}")
    return _BACKENDS[name]()
