"""The page of RoCE trials with PFC: NICs, buffers and pauses in a browser."""

import subprocess
import sys

import pytest

from tests.testbeds import leaf_spine

pytestmark = [pytest.mark.browser, pytest.mark.kernel, pytest.mark.slow]
TESTBED = leaf_spine(
    "small", 2, 1, 12, "25Gbps", "100Gbps", switch="{buffer: 2MB, alpha: 1/8, pfc: [3]}"
)
CAMPAIGN = """
campaign: stopped
testbed: TESTBED
host:
  congestion_control: dcqcn
tuners: [secn1, secn2]
traffic:
  - {kind: incast, fan_in: 20, size: 256KB, period: 1ms}
repeats: 1
duration: 3ms
drain: 100ms
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The page of a campaign in which hosts and switches are stopped."""
    place = tmp_path_factory.mktemp("stopped")
    (place / "testbed.yml").write_text(TESTBED)
    file = place / "stopped.yml"
    file.write_text(CAMPAIGN.replace("TESTBED", str(place / "testbed.yml")))
    closloop = "from orchestration.cli.main import main; main()"
    run = ["run", str(file), "--out", str(place / "runs")]
    subprocess.run([sys.executable, "-c", closloop, *run], check=True)
    return place / "runs" / "stopped" / "report.html"


@pytest.mark.parametrize("width", [360, 1200])
def test_nics_and_buffers_are_drawn_and_nothing_is_cut_off(browser, stopped, width):
    browser.open(stopped, width)
    browser.read()
    heads = browser.run("[...document.querySelectorAll('h3')].map((head) => head.textContent)")
    assert {"Shared buffers", "PFC pauses: who stopped whom"} < set(heads)
    names = browser.run("[...document.querySelectorAll('a[download]')].map((a) => a.download)")
    assert {"rates-of-hosts.csv", "hosts-over-time.csv", "buffers-over-time.csv"} < set(names)
    assert {"repeats-cnps.csv", "repeats-pauses_sent.csv"} < set(names)
    assert browser.complaints == []
    assert browser.undrawn == []
    assert browser.misplaced == []
    assert browser.contrasts["found"] == []
