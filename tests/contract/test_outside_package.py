"""The example package with one of each thing: built, installed outside the tree, and used."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own-package"
PAGE = ROOT / "docs" / "extending.md"
CAMPAIGN = """
campaign: own
testbed: rlcc-7
backend: fluid
traffic: [{kind: incast, fan_in: 3, size: 2MB, period: 1ms}]
tuners: [secn1]
repeats: 1
duration: 2ms
drain: 20ms
"""
NICS = "host: {congestion_control: additive, roce: {additive: {increase: 80Mbps}}}\n"
SWITCH = """
import sys
import numpy as np
from inventory.ansible import load_rack
from orchestration.backends.hardware.switches import make_switch
from orchestration.provision.desired import desired_state

rack = load_rack(sys.argv[1])
one = np.array([0])
for name in ("leaf1", "leaf2"):
    asked = one + 5_000, one + 200_000, np.array([0.5])
    [[_, kmin, kmax, _]] = make_switch(rack, name).set_request(one, *asked)[1]["changes"]
    print(rack.access[name].system.title, kmin, kmax, *desired_state(rack)[name], sep=", ")
"""


RACK = """
name: three
kind: single-switch
hosts: 3
host_link: {rate: 1Gbps, delay: 1us}
mtu: 1500B
buffer: 1MB
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder that the package is installed in."""
    folder = tmp_path_factory.mktemp("own")
    source, site = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source)
    installer = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    offline = ["--no-index", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*installer, *offline, str(source)], check=True, timeout=120)
    return site


@pytest.fixture
def closloop(site, tmp_path):
    """Run a command where the package is installed, in an empty folder; return what it prints."""

    def run(
        *arguments, code=0, path=site, program="from orchestration.cli.main import main; main()"
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]),
                "XDG_STATE_HOME": str(tmp_path / "state"),
            },
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    return run


@pytest.fixture
def campaign(tmp_path):
    def written(more="", **replaced):
        text = CAMPAIGN + more
        for field, value in replaced.items():
            text = re.sub(rf"(?m)^{field}: .*$", f"{field}: {value}", text)
        path = tmp_path / "own.yml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def estimates(closloop, folder):
    report = json.loads(closloop("report", folder, "--json"))
    (condition,) = report["conditions"]
    (arm,) = condition["arms"]
    return {name: figure["mean"] for name, figure in arm["estimates"].items()}


def shown():
    """Yield the texts of the page, with the file that each says it is of."""
    for language, name, text in re.findall(
        r"```(\w+)\n(?:#|//) (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    ):
        yield pytest.param(name, text, id=f"{name}-{language}")


def test_every_text_of_the_page_says_its_file():
    assert PAGE.read_text(encoding="utf-8").count("```") == 2 * len(list(shown()))


@pytest.mark.parametrize(("name", "text"), list(shown()))
def test_the_page_shows_what_is_in_the_package(name, text):
    assert text in (EXAMPLE / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_verb_is_in_the_help_and_runs(closloop, campaign):
    assert "Say which campaigns ran here." in closloop("--help")
    closloop("run", campaign(), "--no-report")
    assert closloop("greet") == "own ran here\n"


@pytest.mark.slow
def test_a_tuner_keeps_the_contract_and_marks_as_it_says(closloop, campaign):
    assert "holds" in closloop("check-tuner", "steady")
    closloop("run", campaign(tuners="[{name: steady, threshold_bytes: 9000}]"), "--no-report")
    said = closloop("sql", "runs", "SELECT DISTINCT kmin_bytes, kmax_bytes FROM actions", "--json")
    assert json.loads(said) == [{"kmin_bytes": 9000, "kmax_bytes": 9000}]


@pytest.mark.slow
@pytest.mark.parametrize("written", ["patient", "fluid"])
def test_a_campaign_runs_on_the_backend(closloop, campaign, tmp_path, written):
    closloop("run", campaign(backend=written), "--on", "patient", "--no-report")
    (trial,) = (tmp_path / "runs/own").glob("secn1-*/trial.json")
    record = json.loads(trial.read_text(encoding="utf-8"))
    assert (record["spec"]["backend"], record["facts"]["ran_by"]) == ("patient", "patient")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fluid", "simulated"])
def test_a_pattern_makes_its_flows(closloop, campaign, backend):
    traffic = "[{kind: pairs, size: 1MB}, {kind: incast, fan_in: 2, size: 64KB, period: 1ms}]"
    closloop("run", campaign(traffic=traffic, backend=backend), "--no-report")
    query = "SELECT class, count(*) AS n, max(bytes) AS largest FROM schedule GROUP BY 1 ORDER BY 1"
    incast, pairs = json.loads(closloop("sql", "runs", query, "--json"))
    assert (pairs["class"], pairs["n"], pairs["largest"]) == ("pairs", 3, 1_000_000)
    assert incast["n"] == 4
    wrong = campaign(traffic="[{kind: pairs, size: 0B}]")
    assert "own.yml:5: " in closloop("plan", wrong, code=2)


@pytest.mark.slow
def test_a_learner_is_trained_and_its_tuner_acts(closloop, campaign):
    more = ("--scenario", campaign(), "--on", "fluid", "-j", "1", "--episodes", "4")
    closloop("train", "trained", *more)
    (checkpoint,) = Path(campaign().parent, "runs/train").glob("**/checkpoint.safetensors")
    tuners = f"[{{name: trained, checkpoint: {checkpoint}}}]"
    closloop("run", campaign(tuners=tuners), "--no-report")
    said = closloop("sql", "runs/own", "SELECT DISTINCT kmax_bytes FROM actions", "--json")
    assert json.loads(said) == [{"kmax_bytes": 10_000}]  # the shortest queues


@pytest.mark.slow
def test_an_importer_takes_over_a_log(closloop, tmp_path):
    (tmp_path / "run.log").write_text("0 0 5 10000 9000\n2000 1 6 20000 15000\n")
    closloop("import", "log", "run.log", "-o", "runs/theirs")
    assert estimates(closloop, "runs/theirs")["fct_mean_ns_all"] == 11_000


@pytest.mark.slow
def test_a_metric_is_in_the_report(closloop, campaign):
    closloop("run", campaign(), "--no-report")
    assert 0 < estimates(closloop, "runs/own")["idle_share"] < 1


@pytest.mark.kernel
@pytest.mark.ns3
def test_a_congestion_control_runs_in_the_kernel_and_in_ns3_alike(closloop, campaign):
    def mean_fct_ns(backend, increase="80Mbps"):
        out, nics = f"{backend}-{increase}", NICS.replace("80Mbps", increase)
        closloop("run", campaign(nics, backend=backend), "--no-report", "--out", out)
        return estimates(closloop, f"{out}/own")["fct_mean_ns_all"]

    emulated, simulated = (mean_fct_ns(one) for one in ("emulated", "simulated"))
    assert emulated == pytest.approx(simulated, rel=0.05)
    assert mean_fct_ns("simulated", "20Mbps") > 1.5 * simulated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "what"),
    [
        (NICS.replace("increase", "decrease"), "additive has no parameter 'decrease'"),
        (NICS.replace("80Mbps", "80"), "-> write it like 10Mbps"),
        (NICS.replace("80Mbps", "200Gbps"), "is not from 1Mbps to 100000Mbps"),
        (NICS.replace("{congestion_control: additive", "{congestion_control: aditive"), "additive"),
    ],
)
def test_its_parameters_are_checked_as_ours_are(closloop, campaign, line, what):
    said = closloop("plan", campaign(line, backend="simulated"), code=2)
    assert "own.yml:10: " in said
    assert what in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("additive.c", "PARAMETERS, 0)", "2, 0)", "takes 2 parameters, and 1 are declared"),
        ("additive.c", "->rate_bps", "->rat_bps", "has no member named ‘rat_bps’"),
        ("congestion_control.py", "ADDITIVE = Cong", "A = Cong", "'additive' of closloop.cong"),
        (
            "congestion_control.py",
            "ADDITIVE = Cong",
            "ADDITIVE = 3, Cong",
            "not a CongestionControl",
        ),
    ],
)
def test_a_control_that_is_wrong_is_named(closloop, campaign, site, tmp_path, file, old, new, what):
    wrong = shutil.copytree(site, tmp_path / "wrong") / "everything" / file
    wrong.write_text(wrong.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    said = closloop("plan", campaign(NICS, backend="simulated"), code=2, path=tmp_path / "wrong")
    assert what in said


@pytest.mark.slow
def test_a_switch_runs_an_operating_system_of_the_package(closloop, tmp_path):
    rack = tmp_path / "rack.yml"
    closloop("inventory", "write", "graphcc", "-o", rack)
    text = rack.read_text(encoding="utf-8")

    def on(device):
        named = text.replace(f" {device}:\n", f" {device}:\n          closloop_platform: careful\n")
        rack.write_text(named, encoding="utf-8")

    on("leaf1")
    first, second = closloop(rack, program=SWITCH).splitlines()
    assert first == "Careful Linux, 6500, 201500, network"
    assert second == "Linux, 5000, 200000, network"
    on("h1")
    assert "h1 is not a switch, but runs Careful Linux" in closloop(rack, program=SWITCH, code=1)


@pytest.mark.kernel
@pytest.mark.ssh
def test_a_campaign_on_a_rack_whose_switch_runs_it(closloop, campaign, tmp_path):
    (tmp_path / "three.yml").write_text(RACK, encoding="utf-8")
    closloop("rack", "up", "three.yml", "--no-sonic")
    try:
        inventory = tmp_path / "state/closloop/racks/three/inventory.yml"
        text = inventory.read_text(encoding="utf-8")
        named = re.sub(r"(?m)^( +)switch1:$", r"\g<0>\n\1  closloop_platform: careful", text)
        inventory.write_text(named, encoding="utf-8")
        closloop("provision", inventory)
        traffic = "[{kind: incast, fan_in: 2, size: 100KB, period: 10ms}]"
        file = campaign(testbed="three.yml", drain="200ms", traffic=traffic)
        rack = ("--on", "hardware", "--inventory", inventory)
        closloop("run", file, *rack, "--no-report")
    finally:
        closloop("rack", "down")
    assert estimates(closloop, "runs/own")["fct_mean_ns_all"] > 0
