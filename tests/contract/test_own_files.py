"""Drivers by file, and workloads and testbeds that installed packages offer."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign
from orchestration.core import plugins
from orchestration.core.errors import InputError
from traffic.workloads import load_workload

TESTBEDS = Path(__file__).parents[2] / "inventory" / "testbeds"
CAMPAIGN = """
campaign: own
testbed: graphcc
backend: hardware
tuners: [secn1]
traffic:
  - {kind: incast, fan_in: 2, size: 64KB, period: 1ms, driver: {name: mine.py:Mine, tries: TRIES}}
repeats: 1
duration: 2ms
"""
DRIVER = """
from traffic.drivers.iperf3 import Iperf3
from traffic.drivers.programs import Option


class Mine(Iperf3):
    options = (*Iperf3.options, Option("tries", 1, "how often", 1, 9))
"""


def write(folder: Path, tries: str) -> Path:
    (folder / "mine.py").write_text(DRIVER, encoding="utf-8")
    path = folder / "campaign.yml"
    path.write_text(CAMPAIGN.replace("TRIES", tries), encoding="utf-8")
    return path


def test_a_driver_of_ones_own_is_taken_by_its_file_and_is_part_of_the_trial(tmp_path):
    path = write(tmp_path, "3")
    (first,) = load_campaign(path).trials
    (pattern,) = first.traffic
    assert pattern.driver.name == f"{tmp_path / 'mine.py'}:Mine"
    assert pattern.driver.options == (("tries", 3),)
    (tmp_path / "mine.py").write_text(DRIVER + "# changed\n", encoding="utf-8")
    assert load_campaign(path).trials[0].id != first.id


def test_its_options_are_checked_as_others_are(tmp_path):
    with pytest.raises(InputError, match=r"campaign\.yml:7: tries"):
        load_campaign(write(tmp_path, "30"))


def test_a_file_without_the_driver_is_refused(tmp_path):
    path = write(tmp_path, "3")
    (tmp_path / "mine.py").write_text("Other = 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no 'Mine'"):
        load_campaign(path)


def test_packages_offer_workloads_and_testbeds(tmp_path, monkeypatch):
    table = tmp_path / "table.csv"
    table.write_text("bytes,cdf\n1000,0\n2000,1\n", encoding="utf-8")
    testbed = tmp_path / "small.yml"
    text = (TESTBEDS / "graphcc.yml").read_text(encoding="utf-8")
    testbed.write_text(text.replace("name: graphcc", "name: theirs"), encoding="utf-8")
    package = ModuleType("theirs")
    package.TABLE, package.TESTBED = table, testbed
    monkeypatch.setitem(sys.modules, "theirs", package)
    groups = {
        "closloop.workloads": {"Theirs": "theirs:TABLE"},
        "closloop.testbeds": {"theirs": "theirs:TESTBED"},
    }
    monkeypatch.setattr(plugins, "offered", lambda group: groups.get(group, {}))
    assert load_workload("Theirs").name == "Theirs"
    assert load_testbed("theirs").name == "theirs"
    with pytest.raises(InputError, match="known are"):
        load_testbed("nobodys")
