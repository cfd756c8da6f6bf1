"""The sink from a rack's controller: what is measured over SSH arrives at the server, all of it."""

import signal
import sys
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.bench.rack import closloop
from orchestration.results.reader import finished_trials, read_trial
from orchestration.virtual_rack.control import up

sys.path.insert(0, str(Path(__file__).parent))
from agreement import agree

from tests.testbeds import leaf_spine

pytestmark = [pytest.mark.kernel, pytest.mark.ssh, pytest.mark.influx, pytest.mark.slow]

FIVE_DEVICES = leaf_spine("five", 2, 1, 1, "25Gbps", "100Gbps", buffer="16MB")
# Readings and flows are milliseconds apart: the server keeps milliseconds.
CAMPAIGN = """
campaign: tele
testbed: {testbed}
backend: hardware
tuners: [secn1, {{name: random, of: acc}}]
traffic:
  - {{kind: flow, src: h1, dst: h2, size: 2MB, start: 1ms}}
  - {{kind: flow, src: h2, dst: h1, size: 200KB, start: 13ms}}
  - {{kind: flow, src: h1, dst: h2, size: 200KB, start: 40ms}}
repeats: 1
duration: 44ms
drain: 100ms
sample_period: 2ms
"""


def test_a_run_on_a_rack_is_in_the_server_when_it_ends(server, tmp_path, monkeypatch):
    # From within a virtual rack nothing else can be reached: the server runs there meanwhile.
    server.stop()
    for name, value in (("URL", server.url), ("ORG", "lab"), ("BUCKET", "runs"), ("TOKEN", "t")):
        monkeypatch.setenv(f"CLOSLOOP_INFLUX_{name}", value)
    testbed, file = tmp_path / "five.yml", tmp_path / "tele.yml"
    testbed.write_text(FIVE_DEVICES)
    file.write_text(CAMPAIGN.format(testbed=testbed))
    rack, _ = up(load_testbed(str(testbed)), folder=tmp_path / "rack")
    try:
        inventory = str(rack.inventory)
        code, said = closloop(rack, tmp_path, "provision", inventory, "--json")
        assert code == 0, said
        with (tmp_path / "server").open("wb") as log:
            within = rack.start(server.command, stdout=log, stderr=log)
            code, said = closloop(
                rack, tmp_path, "run", str(file), "-i", inventory, "--sink", "influx", "--json"
            )
            within.kill(signal.SIGTERM)
            assert within.wait() == 0, (tmp_path / "server").read_text()
    finally:
        rack.down()
    told = (tmp_path / "log").read_text()
    assert code == 0, told
    assert "points sent to bucket 'runs'" in told
    server.start()
    campaign = tmp_path / "runs" / "tele"
    agree(server, campaign, 2)
    # and it is what the rack did: not two empty archives that agree
    for folder in finished_trials(campaign):
        trial = read_trial(folder)
        assert trial.table("flows")["status"].tolist() == ["done"] * 3
        assert len(trial.ports.t_ns) >= 20
        assert trial.ports.tx_bytes[-1].sum() > 3 * 2_400_000
