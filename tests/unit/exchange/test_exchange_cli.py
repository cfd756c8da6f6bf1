import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestration.cli.main import app
from orchestration.core import plugins
from orchestration.core.errors import InputError
from orchestration.exchange import verbs

TOPOLOGY = "3 1 2\n2\n0 2 25Gbps 1000ns 0.000000\n1 2 25Gbps 1000ns 0.000000\n"
FLOWS = "1\n0 1 3 100 48213 2.000000000\n"
FCT = "0b000001 0b000101 10000 100 48213 2000000000 21877 19021\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("topology.txt", TOPOLOGY), ("flow.txt", FLOWS), ("fct.txt", FCT)):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


MINE = Path(__file__).parents[3] / "examples" / "own-package" / "everything" / "importer.py"
IMPORT = ("import", "hpcc", "--flow", "flow.txt", "--topology", "topology.txt", "--fct", "fct.txt")


def test_an_import_is_reported_compared_and_exported(files):
    done = json.loads(run(*IMPORT, "-o", "runs/theirs", "--label", "a", "--json").stdout)
    assert (done["flows"], done["done"], done["valid"]) == (1, 1, True)
    assert "samples of ports" in done["missing"]
    again = run(*IMPORT, "-o", "runs/theirs", "--label", "b")
    assert "not imported: samples of ports" in again.output
    report = run("report", "runs/theirs", "--json", "--no-html")
    (condition,) = json.loads(report.stdout)["conditions"]
    assert [arm["arm"] for arm in condition["arms"]] == ["a", "b"]
    assert run("report", "runs/theirs").exit_code == 0
    assert (files / "runs" / "theirs" / "report.html").is_file()

    assert run("export", "csv", "runs/theirs", "-o", "out").exit_code == 0
    assert len(list((files / "out").glob("*/flows.csv"))) == 2
    one = run("export", "hpcc", done["folder"], "-o", "hpcc", "--cc", "dctcp", "--prefix", "mix/q")
    assert "scratch/third mix/q/config.txt" in one.output
    assert "FLOW_FILE mix/q/flow.txt\n" in (files / "hpcc" / "config.txt").read_text()


def test_a_run_without_its_congestion_control_asks_for_one(files):
    run(*IMPORT, "-o", "runs/theirs")
    with pytest.raises(InputError, match="no 'unknown'") as caught:
        run("export", "hpcc", "runs/theirs", "-o", "out")
    assert "--cc" in caught.value.problems[0].remedy
    assert not (files / "out").exists()


def test_what_a_verb_needs_is_said_at_once(files):
    with pytest.raises(InputError) as caught:
        run("import", "omnetpp", "flow.txt")
    assert [problem.where for problem in caught.value.problems] == ["--mapping", "--out"]
    with pytest.raises(InputError, match="neither a flow file nor an fct file"):
        run("import", "hpcc", "--topology", "topology.txt", "-o", "runs/x")
    with pytest.raises(InputError, match="--base"):
        run(*IMPORT, "-o", "runs/x", "--base", "2")


def test_flows_of_a_csv_for_a_replay(files):
    (files / "flows.csv").write_text("from,to,size,at\na,b,2,7\nb,x,1,9\n")
    (files / "map.yml").write_text(
        "testbed: graphcc\nhosts: {a: h1, b: h2}\ncolumns:\n  src: from\n  dst: to\n"
        "  bytes: {column: size, unit: KB}\n  start: {column: at, unit: ms}\n"
    )
    words = ("import", "flows", "flows.csv", "--mapping", "map.yml", "--testbed", "graphcc")
    done = json.loads(run(*words, "-o", "one.csv", "--json").stdout)
    assert (done["flows"], done["dropped"]) == (1, {"x": 1})
    said = run(*words, "-o", "two.csv").output
    assert "dropped: 1 flows of addresses that are no hosts of the testbed: x (1)" in said
    assert (files / "two.csv").read_text() == "start_ns,src,dst,bytes,class\n0,h1,h2,2000,all\n"


def test_the_help_lists_importers_without_loading_them():
    code = (
        "import sys; from typer.testing import CliRunner; from orchestration.cli.main import app;"
        "print(CliRunner().invoke(app, ['import', '--help']).output, *sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "Import a run of OMNeT++" in shown
    assert "orchestration.exchange.verbs" in shown
    assert "orchestration.exchange.omnetpp_import" not in shown
    assert "numpy" not in shown


def test_an_importer_of_ones_own_gets_the_options_of_a_trial_and_a_broken_one_is_said(
    files, monkeypatch
):
    shutil.copy(MINE, files / "my_importer.py")
    monkeypatch.syspath_prepend(str(files))
    points = {
        name: f"{place}:import_log"
        for name, place in (("mine", "my_importer"), ("broken", "nowhere.at_all"))
    }
    monkeypatch.setattr(plugins, "offered", lambda group: points)
    monkeypatch.setattr(verbs, "offered", lambda group: points)
    (files / "run.log").write_text("0 0 1 1000 9000\n5 1 2 2000 19000\n")
    assert (
        "Import a run of a simulator that writes one line per flow."
        in run("import", "--help").output
    )
    done = json.loads(run("import", "mine", "run.log", "-o", "runs/mine", "--json").stdout)
    assert (done["label"], done["flows"], done["testbed"]) == ("imported", 2, "graphcc")
    with pytest.raises(InputError, match=r"'broken' of closloop\.importers cannot be loaded"):
        run("import", "broken", "run.log", "-o", "runs/mine")
