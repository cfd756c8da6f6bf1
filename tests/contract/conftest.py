"""The backends that keep a contract, each with what it needs here."""

from typing import NamedTuple

import pytest

from orchestration.core.engines import KERNEL, PROCESS
from orchestration.core.roce import BDP_WINDOW, RoceSpec
from orchestration.core.trial import CLOSLOOP, TCP, HostSpec
from orchestration.run import backend_factory


class Engine(NamedTuple):
    """A backend and its engine, "" if it has only one. `fields` are a trial's that suit it."""

    backend: str
    engine: str = ""

    def make(self):
        return backend_factory.backend(self.backend, engine=self.engine)

    @property
    def runs_roce(self):
        return self.engine == PROCESS

    @property
    def fields(self):
        # with a window, RoCE NICs do not put all they have into a switch before they hear of it
        roce = RoceSpec(window_bytes=BDP_WINDOW)
        host = HostSpec("dcqcn", roce=roce) if self.runs_roce else TCP
        more = {"fabric": CLOSLOOP} if self.runs_roce else {}
        return {"backend": self.backend, "host": host, **more}


_PROCESS = pytest.param(Engine("emulated", PROCESS), id=PROCESS)
_KERNEL = pytest.param(Engine("emulated", KERNEL), id=KERNEL, marks=pytest.mark.kernel)
_SIMULATED = pytest.param(Engine("simulated"), id="simulated", marks=pytest.mark.ns3)


_FLUID = pytest.param(Engine("fluid"), id="fluid")


@pytest.fixture(params=[_FLUID, _PROCESS, _KERNEL, _SIMULATED])
def engine(request):
    """Each engine of each backend; trials that have its `fields` run there."""
    return request.param


@pytest.fixture(params=[_FLUID, _KERNEL, _SIMULATED])
def tcp_engine(request):
    """Each engine that runs TCP flows."""
    return request.param


@pytest.fixture(params=[_PROCESS, _KERNEL, _SIMULATED])
def roce_engine(request):
    """Each engine that runs RoCE flows."""
    return request.param


@pytest.fixture
def backend(engine):
    return engine.make()
