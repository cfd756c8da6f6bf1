"""On the golden campaigns under RoCE, docs/generated/engines.md finds the engines equivalent."""

import importlib.util
import sys
from pathlib import Path

import pytest

from orchestration.core.engines import PROCESS
from orchestration.run.backend_factory import engine_for

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "generated" / "engines.md"


@pytest.fixture(scope="module")
def script():
    """The program that makes the page; its paths are from the source tree's root."""
    spec = importlib.util.spec_from_file_location("engines_page", ROOT / "scripts" / "engines.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_it_compares_runs_in_the_process_by_default(script):
    for golden in script.GOLDEN:
        campaign = script.golden_campaign(golden)
        assert engine_for(campaign.trials, campaign.testbeds).engine == PROCESS, golden


def test_every_metric_is_equivalent(script):
    text = PAGE.read_text(encoding="utf-8")
    for golden in script.GOLDEN:
        name = script.golden_campaign(golden).name
        assert f"### {name}\n\nEquivalent: " in text, name
