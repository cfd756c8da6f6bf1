"""Every Flux query that closloop has passes the checks of InfluxData's own compiler."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.sinks.lines import MEASUREMENTS
from orchestration.telemetry.pull import query

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "telemetry"))
from test_telemetry_dashboards import DASHBOARDS, load, queries_of

pytestmark = pytest.mark.flux

# What Grafana defines before a query of its data source.
MACROS = """
option v = {
    bucket: "runs", defaultBucket: "runs", organization: "lab",
    timeRangeStart: -1h, timeRangeStop: now(), windowPeriod: 1s,
}
"""
# Its `is_valid` looks at types and at the signatures of what is called, not at syntax alone.
CHECK = """
const {Flux} = require(process.argv[1]);
const queries = JSON.parse(require("fs").readFileSync(0, "utf8"));
const check = text => { try { return new Flux(text).is_valid(); } catch { return false; } };
console.log(JSON.stringify(queries.map(check)));
"""


def are_sound(queries, compiler):
    done = subprocess.run(
        ["node", "-e", CHECK, str(compiler)],
        input=json.dumps(queries), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def as_grafana_asks(text):
    """Return a dashboard's query with variables filled in and Grafana's macros defined."""
    filled = re.sub(r"\$\{\w+(:\w+)?\}", "leaf1", text)
    imports = re.findall(r"^import .*$", filled, flags=re.M)
    rest = re.sub(r"^import .*$", "", filled, flags=re.M)
    return "\n".join([*imports, MACROS, rest])


def test_the_dashboards_queries_compile(flux_compiler):
    asked = {
        f"{path.stem}: {what}": as_grafana_asks(text)
        for path in DASHBOARDS
        for what, text in queries_of(load(path))
    }
    assert len(asked) > 50
    sound = are_sound(list(asked.values()), flux_compiler)
    assert [what for what, is_sound in zip(asked, sound, strict=True) if not is_sound] == []


def test_the_queries_of_pull_compile(flux_compiler):
    tags = {"campaign": 'a "quoted" one', "trial": "back\\slash"}
    asked = [query("runs", measurement, tags) for measurement in MEASUREMENTS.values()]
    assert are_sound(asked, flux_compiler) == [True] * len(MEASUREMENTS)


@pytest.mark.parametrize(
    "wrong",
    [
        "from(bucket: 3)",
        'from(bucket: "runs") |> range(start: -1h) |> filter(fn: (r) => r.qlen_bytes + 1)',
        'from(bucket: "runs") |> rang(start: -1h)',
        'from(bucket: "runs" |> range(start: -1h)',
    ],
)
def test_a_wrong_query_would_be_found(wrong, flux_compiler):
    assert are_sound([as_grafana_asks(wrong)], flux_compiler) == [False]
