"""The dashboards ask for nothing but what the sink writes."""

import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from collectors.sinks.lines import COMMON_TAGS, MEASUREMENTS

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
FOLDER = PLAYBOOKS / "files" / "grafana"
DASHBOARDS = sorted(FOLDER.glob("*.json"))
BUILT_IN = {"_measurement", "_field", "_value", "_time"}
_STRING = r'"((?:[^"\\]|\\.)*)"'


def load(path):
    return json.loads(path.read_text())


def panels_of(dashboard):
    return dashboard["panels"]


def queries_of(dashboard):
    """Return every Flux query with what it is of."""
    found = [
        (f"{panel['title']} {target['refId']}", target["query"])
        for panel in panels_of(dashboard)
        for target in panel["targets"]
    ]
    found += [
        (f"variable {variable['name']}", variable["query"]["query"])
        for variable in dashboard["templating"]["list"]
    ]
    return found


def unknown_names(query):
    """Return the names in a Flux query that the sink does not write and the query does not make."""
    wrong = []
    # One source after the other: each has its own measurement, made columns are the query's.
    made = set(re.findall(r"[({,]\s*(?:r with )?(\w+): ", query))
    made |= set(re.findall(r", (\w+): ", query))
    aliases = set(re.findall(r"tables: \{(\w+): \w+, (\w+): \w+\}", query))
    suffixes = {alias for pair in aliases for alias in pair}
    sources = re.split(r"(?=from\(bucket: )|(?=schema\.tagValues)", query)[1:]
    known_anywhere = set(made) | BUILT_IN
    for source in sources:
        names = re.findall(rf"r\._measurement == {_STRING}", source)
        if len(set(names)) != 1 or names[0] not in MEASUREMENTS:
            wrong.append(f"measurement {names}")
            continue
        measurement = MEASUREMENTS[names[0]]
        tags, fields = {*COMMON_TAGS, *measurement.tags}, set(measurement.fields)
        asked = re.findall(rf"r\._field == {_STRING}", source)
        wrong += [f"field {name}" for name in asked if name not in fields]
        wrong += [f"tag {name}" for name in re.findall(r'tag: "(\w+)"', source) if name not in tags]
        if "pivot" in source:
            # A column is there only if its field was asked for.
            known_anywhere |= set(asked) | tags
        else:
            known_anywhere |= tags
    used = set(re.findall(r"\br\.(\w+)", query)) | set(re.findall(r"\br\[\"(\w+)\"\]", query))
    for columns in re.findall(r"(?:columns|rowKey|columnKey|on): \[([^\]]*)\]", query):
        used |= set(re.findall(_STRING, columns))
    used |= set(re.findall(r'(?:column|valueColumn): "(\w+)"', query))
    for name in used:
        plain = name
        for suffix in suffixes:
            plain = plain.removesuffix(f"_{suffix}")
        if name not in known_anywhere and plain not in known_anywhere:
            wrong.append(f"column {name}")
    return wrong


def test_there_are_the_four_dashboards_that_the_playbook_installs():
    named = YAML(typ="safe").load((PLAYBOOKS / "group_vars" / "collector.yml").read_text())
    assert sorted(named["closloop_grafana_names"]) == [path.stem for path in DASHBOARDS]
    assert len(DASHBOARDS) == 4


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_queries_name_only_what_is_written(path):
    for what, query in queries_of(load(path)):
        assert unknown_names(query) == [], what


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_sound(path):
    dashboard = load(path)
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    for number, variable in enumerate(dashboard["templating"]["list"]):
        # A variable may depend on those before it.
        used = re.findall(r"\$\{(\w+)", variable["query"]["query"])
        assert set(used) <= set(variables[:number])
    for what, query in queries_of(dashboard):
        assert set(re.findall(r"\$\{(\w+)", query)) <= set(variables), what
        assert query.count("(") == query.count(")"), what
        assert "v.timeRangeStart" in query, what
    numbers = [panel["id"] for panel in panels_of(dashboard)]
    assert len(set(numbers)) == len(numbers)
    for panel in panels_of(dashboard):
        assert panel["title"]
        assert panel["description"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    template = (PLAYBOOKS / "templates" / "grafana-datasource.yml.j2").read_text()
    sources = {json.dumps(p["datasource"], sort_keys=True) for p in panels_of(dashboard)}
    [source] = [json.loads(text) for text in sources]
    assert f"uid: {source['uid']}" in template


def test_dashboards_are_told_apart():
    assert len({load(path)["uid"] for path in DASHBOARDS}) == len(DASHBOARDS)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("closloop_port", "closloop_ports", "measurement"),
        ('"qlen_bytes"', '"queue_bytes"', "field queue_bytes"),
        ("r.device", "r.switch", "column switch"),
        ("r.trial ==", "r.trail ==", "column trail"),
        ("r.qlen_bytes", "r.tx_bytes", "column tx_bytes"),
    ],
)
def test_a_wrong_name_would_be_found(right, wrong, said):
    [query] = [
        query for what, query in queries_of(load(FOLDER / "one-trial.json")) if what == "Queues A"
    ]
    assert right in query
    found = unknown_names(query.replace(right, wrong))
    assert any(said in text for text in found), found


def test_every_measurement_but_the_files_is_shown_somewhere():
    queries = "".join(query for path in DASHBOARDS for _, query in queries_of(load(path)))
    shown = {name for name in MEASUREMENTS if f'"{name}"' in queries}
    assert shown == set(MEASUREMENTS) - {"closloop_file"}
