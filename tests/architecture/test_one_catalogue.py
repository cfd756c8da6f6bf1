"""One catalogue says what metrics are called, their units and which way is better.

A metric of one's own is one entry, and is then everywhere: shown by bringing one.
"""

import ast
import json
import os
import subprocess
import sys

import pytest
from trees import ROOT, product

from orchestration.analysis import metrics
from orchestration.analysis.metrics import METRICS
from orchestration.core.errors import InputError
from orchestration.datapath.flows import COUNTERS
from orchestration.results.tables import TABLES

CATALOGUE = ("orchestration/analysis/metric_types.py", "orchestration/analysis/metrics.py")
# What a class of metrics has. A signal or a knob has a unit too, but neither law nor direction.
FIELDS = ({"label", "unit"}, {"better", "key"}, {"law", "key"})

OWN = '''
"""Metrics of one's own."""
import closloop


def halves(trial):
    return 1 + float((trial.table("flows")["fct_ns"] % 2).mean())


ODD = closloop.Metric(
    "odd_ends", "flows that end at odd times", "ratio", "flow", "ratio", compared=True, of=halves
)
'''
CAMPAIGN = """
campaign: own
testbed: rlcc-7
backend: fluid
tuners: [secn1, secn2]
traffic: [{kind: poisson, workload: WebSearch, load: 0.4}]
repeats: {until: 1%, of: [odd_ends], least: 3, most: 4}
duration: 1ms
drain: 20ms
"""


def defined(nodes, keys):
    """The lines at which a module says of metrics what the catalogue says."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            names = {
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            }
            if any(fields <= names for fields in FIELDS):
                yield node.lineno
        elif isinstance(node, ast.Dict):
            texts = [
                key
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
                and key.value in keys
                and isinstance(value, ast.Constant)
                and isinstance(value.value, str)
                and (" " in value.value or "{" in value.value)
            ]
            if texts:
                yield node.lineno
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            named = [
                one for one in node.elts if isinstance(one, ast.Constant) and one.value in keys
            ]
            if len(named) > 3:
                yield node.lineno


def test_no_other_module_says_what_a_metric_is():
    keys = set(METRICS) | {metric.family for metric in METRICS.values()} - {""}
    found = [
        f"{source.name}:{line}"
        for source in product()
        if source.name not in CATALOGUE
        for line in defined(source.nodes, keys)
    ]
    assert found == []


@pytest.mark.parametrize("metric", METRICS.values(), ids=str)
def test_each_metric_says_where_its_data_come_from(metric):
    assert metric.columns
    for column in metric.columns:
        table, _, name = column.partition(".")
        assert name in (COUNTERS if table == "facts" else TABLES[table].columns), column


@pytest.fixture
def bring(monkeypatch):
    def bring(*references):
        monkeypatch.setenv("CLOSLOOP_METRICS", ",".join(references))
        metrics._known.cache_clear()
        return METRICS

    yield bring
    monkeypatch.undo()
    metrics._known.cache_clear()


@pytest.mark.slow
def test_a_metric_of_ones_own_is_one_entry_and_is_everywhere(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "own.yml").write_text(CAMPAIGN, encoding="utf-8")

    def closloop(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", "from orchestration.cli.main import main; main()", *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CLOSLOOP_METRICS": "mine.py:ODD",
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    closloop("run", "own.yml")  # with adaptive repeats by it
    [on_interim_analysis] = json.loads((tmp_path / "runs/own/looks.json").read_text())["conditions"]
    assert on_interim_analysis["widths"]["odd_ends"]["secn2"] > 0
    label = "flows that end at odd times"
    assert label in closloop("report", "runs/own", "--full", "--csv", "csv")
    assert label in (tmp_path / "runs/own/report.html").read_text()
    assert any("odd_ends" in file.read_text() for file in (tmp_path / "csv").iterdir())
    report = json.loads(closloop("report", "runs/own", "--json"))
    [condition] = report["conditions"]
    [arm, _] = condition["arms"]
    assert 1 < arm["estimates"]["odd_ends"]["mean"] < 2
    assert "odd_ends" in {item["metric"] for item in condition["comparisons"]}
    assert label in closloop("compare", "runs/own", "runs/own", "--margin", "odd_ends=5%")
    found = json.loads(
        closloop("search", "own.yml", "--metric", "odd_ends", "--settings", "3", "--rounds", "0",
                 "--verify", "2", "--json")
    )  # fmt: skip
    assert found["metric"] == "odd_ends"
    assert 'metric="odd_ends"' in closloop("exporter", "runs/own", "--once")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (OWN.replace('"odd_ends"', '"cnps"'), "has the key 'cnps', which another metric has"),
        ("ODD = 3", "is not a closloop.Metric with `of`"),
        (OWN.replace(", of=halves", ""), "is not a closloop.Metric with `of`"),
        (OWN.replace("import closloop", "import nothing_of_this_name"), "cannot be imported"),
    ],
)
def test_an_entry_that_is_wrong_is_refused(tmp_path, bring, text, what):
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=what):
        bring(f"{tmp_path}/mine.py:ODD")["cnps"]
