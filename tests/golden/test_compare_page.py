"""A comparison's words and numbers, pinned: two ECN settings on the fluid model, three seeds.

`python tests/golden/test_compare_page.py` writes the expected text anew; read the difference.
"""

from __future__ import annotations

import html
import re
import tempfile
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.analysis.comparison.blocks import comparison_page
from orchestration.analysis.comparison.equivalence import Margins
from orchestration.analysis.comparison.result import compare_runs
from orchestration.analysis.stamp import stamp
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.core.ports import TrialRun
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.results.writer import write_trial
from traffic.patterns.incast import IncastSpec
from traffic.schedule import make_schedule

EXPECTED = Path(__file__).parent / "compare" / "page.txt"
MILLISECOND = 1_000_000


def write_run(folder: Path, tuner: str) -> Path:
    testbed = load_testbed("graphcc")
    for repeat in (1, 2, 3):
        trial = TrialSpec(
            campaign=folder.name,
            testbed="graphcc",
            backend="fluid",
            tuner=TunerSpec(tuner),
            traffic=(IncastSpec(8, 200_000, MILLISECOND, 0, 4 * MILLISECOND),),
            seed=repeat,
            repeat=repeat,
            duration_ns=4 * MILLISECOND,
            drain_ns=100 * MILLISECOND,
            cell={"tuner": tuner},
        )
        schedule = make_schedule(trial, testbed)
        record = FluidBackend().run(TrialRun(trial, testbed, schedule, folder))
        verdict = stamp(trial, testbed, schedule, record)
        facts = {"wall_s": 2.0}
        write_trial(folder / trial.id, trial, testbed, schedule, record, verdict, facts)
    return folder


def page_text(folder: Path) -> str:
    """Return the page's words and numbers, without what it was made with, and pictures."""
    runs = [write_run(folder / tuner, tuner) for tuner in ("secn1", "secn2")]
    page = comparison_page(compare_runs(runs, Margins()))
    body = page[page.index("</head>") : page.index("<h3>Software and settings</h3>")]
    body = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    cells = re.sub(r"</?(b|code)>", "", re.sub(r"</t[dh]><t[dh][^>]*>", " | ", body))
    return "\n".join(
        line
        for part in re.sub(r"<[^>]+>", "\n", cells).splitlines()
        if (line := html.unescape(part).strip())
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_text(tmp_path_factory.mktemp("compare"))


def test_the_page_says_what_is_expected(text: str) -> None:
    assert text == EXPECTED.read_text(encoding="utf-8").rstrip("\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        EXPECTED.write_text(page_text(Path(place)) + "\n", encoding="utf-8")
