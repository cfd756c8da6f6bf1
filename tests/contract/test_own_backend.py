"""A backend of a user's own package is offered, named and run as ours are."""

import importlib.metadata
import sys
from dataclasses import replace
from types import ModuleType

import pytest

import closloop
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.core import capabilities, plugins
from orchestration.core.errors import InputError
from orchestration.run import backend_factory

CAMPAIGN = """
campaign: own
testbed: graphcc
backend: {backend}
traffic: [{{kind: flow, src: h1, dst: h5, size: 10KB, start: 0ms}}]
tuners: [secn1]
repeats: 1
duration: 1ms
drain: 10ms
"""


class WaterBackend(FluidBackend):
    """The fluid model under another name."""

    name = "water"


@pytest.fixture
def campaign(tmp_path):
    def written(backend):
        path = tmp_path / f"{backend}.yml"
        path.write_text(CAMPAIGN.format(backend=backend))
        return path

    return written


@pytest.fixture
def offer(monkeypatch):
    """Return a function that installs an entry point of `closloop.backends`."""
    found = importlib.metadata.entry_points

    def installed(name, value):
        module = ModuleType("water_model")
        own = replace(capabilities.capabilities("fluid"), name="water")
        module.CAPABILITIES = replace(own, implementation="water_model:WaterBackend")
        module.WaterBackend = WaterBackend
        monkeypatch.setitem(sys.modules, "water_model", module)
        point = importlib.metadata.EntryPoint(name, value, capabilities.GROUP)

        def entry_points(**chosen):
            more = [point] if chosen.get("group") == capabilities.GROUP else []
            return [*found(**chosen), *more]

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
        forget()

    def forget():
        plugins._OFFERED.clear()
        capabilities.capabilities.cache_clear()

    yield installed
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(("written", "on"), [("water", None), ("fluid", "water")])
def test_a_campaign_runs_on_it(offer, campaign, tmp_path, written, on):
    offer("water", "water_model:CAPABILITIES")
    summary = closloop.run(campaign(written), on=on, out=tmp_path / "runs")
    assert (summary.finished, summary.failed, summary.invalid) == (1, {}, {})
    assert [one.name for one in capabilities.backends()][-3:] == ["simulated", "water", "hardware"]


def test_it_is_known_only_while_its_package_is_installed(offer, campaign):
    with pytest.raises(
        InputError, match=r"(?s)unknown backend 'water'.*fluid, simulated or hardware"
    ):
        load_campaign(campaign("water"))
    with pytest.raises(InputError, match="no backend is called 'water'"):
        backend_factory.backend("water")
    offer("water", "water_model:CAPABILITIES")
    with pytest.raises(InputError, match="use emulated, fluid, simulated, water or hardware"):
        load_campaign(campaign("wter"))
    assert isinstance(backend_factory.backend("water"), WaterBackend)


@pytest.mark.parametrize(
    "value", ["water_model:WaterBackend", "water_model:NOTHING", "no_module:X"]
)
def test_a_package_that_offers_no_capabilities_is_named(offer, campaign, value):
    offer("water", value)
    with pytest.raises(
        InputError, match=r"(?s)'water' of closloop\.backends .*correct its package"
    ):
        load_campaign(campaign("water"))


def test_the_name_of_the_entry_point_is_that_of_the_backend(offer, campaign):
    offer("steam", "water_model:CAPABILITIES")
    with pytest.raises(InputError, match=r"'steam' of closloop\.backends does not name Capab"):
        load_campaign(campaign("steam"))
