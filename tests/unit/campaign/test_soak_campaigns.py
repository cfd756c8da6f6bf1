"""What a soak draws are campaigns that load, and of every kind that it may draw."""

import random
import sys
from pathlib import Path

import pytest

from orchestration.campaign.expand import load_campaign

sys.path.insert(0, str(Path(__file__).parents[2] / "soak"))
from draw import TRANSPORTS, draw_campaign


@pytest.mark.slow
@pytest.mark.parametrize("backend", TRANSPORTS)
def test_every_drawn_campaign_loads(tmp_path, backend):
    transports = set()
    for seed in range(40):
        place = tmp_path / str(seed)
        place.mkdir()
        campaign = load_campaign(draw_campaign(random.Random(seed), backend, place))
        assert 2 <= len(campaign.cells) <= 3
        assert {trial.backend for trial in campaign.trials} == {backend}
        transports |= {trial.host.congestion_control for trial in campaign.trials}
    assert transports == set(TRANSPORTS[backend])


def test_the_seed_decides_what_is_drawn(tmp_path):
    made = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        made.append(draw_campaign(random.Random(7), "emulated", tmp_path / name))
    assert made[0].read_bytes() == made[1].read_bytes()
