"""The dashboards in Grafana itself, which asks InfluxDB itself: every panel shows data, pictured.

scripts/influxdb.sh runs this where both are installed. Grafana reads the same files that the
playbooks give it, from a folder of its own, on a free port.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import jinja2
import pytest
from ruamel.yaml import YAML

from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.run.launcher import run_campaign
from orchestration.telemetry.sender import push
from orchestration.telemetry.settings import load_settings

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "telemetry"))
from test_telemetry_dashboards import DASHBOARDS, FOLDER, PLAYBOOKS, load, panels_of

pytestmark = [pytest.mark.grafana, pytest.mark.browser, pytest.mark.slow]

CAMPAIGN = """\
campaign: {name}
testbed: graphcc
backend: fluid
tuners: [amt, {{name: random, of: acc}}]
traffic:
  - {{kind: poisson, workload: WebSearch, load: 0.3}}
faults:
  - {{share: 0.5, down: 300us, up: 600us, convergence: 100us}}
repeats: 2
duration: 1ms
"""
WAIT_S = 60
# Where pictures go; a person looks at them.
PICTURES = Path(os.environ.get("CLOSLOOP_PICTURES", "runs/dashboards"))
# Of traffic that this campaign has not: no pauses without PFC, no CNPs, rates and round trips
# without RoCE.
WITHOUT = re.compile(r"pause|headroom|shared|CNP|rate|round", re.I)


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """Run a campaign and push it; return its name."""
    folder = tmp_path_factory.mktemp("sent")
    name = f"grafana-{os.getpid()}"
    (folder / "campaign.yml").write_text(CAMPAIGN.format(name=name))

    class Silent:
        def __getattr__(self, name):
            return lambda *words: None

    run_campaign(load_campaign(folder / "campaign.yml"), FluidBackend(), folder, 1, Silent())
    done = push([folder / name], load_settings(), say=lambda text, remedy: None)
    assert (done.trials, done.failed) == (4, [])
    return name


@pytest.fixture(scope="module")
def grafana(tmp_path_factory, grafana_program):
    """Start Grafana with what the playbooks install; return its address."""
    folder = tmp_path_factory.mktemp("grafana")
    provisioning, boards = folder / "provisioning", folder / "dashboards"
    for made in (boards, provisioning / "dashboards", provisioning / "datasources"):
        made.mkdir(parents=True)
    for path in DASHBOARDS:
        shutil.copy(path, boards)
    provider = YAML(typ="safe").load((FOLDER / "provider.yml").read_text())
    provider["providers"][0]["options"]["path"] = str(boards)
    (provisioning / "dashboards/closloop.yml").write_text(json.dumps(provider))
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(PLAYBOOKS / "templates"))
    templates.filters["to_json"] = json.dumps
    values = {
        f"closloop_influxdb_{name}": os.environ[f"CLOSLOOP_INFLUX_{variable}"]
        for name, variable in {
            "address": "URL", "org": "ORG", "bucket": "BUCKET", "token": "TOKEN"
        }.items()
    }  # fmt: skip
    source = templates.get_template("grafana-datasource.yml.j2").render(values)
    (provisioning / "datasources/closloop.yml").write_text(source)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # https://grafana.com/docs/grafana/latest/setup-grafana/configure-grafana/: GF_SECTION_KEY
    settings = {
        "PATHS_DATA": str(folder / "data"),
        "PATHS_LOGS": str(folder / "logs"),
        "PATHS_PLUGINS": str(folder / "plugins"),
        "PATHS_PROVISIONING": str(provisioning),
        "SERVER_HTTP_ADDR": "127.0.0.1",
        "SERVER_HTTP_PORT": str(port),
        "AUTH_ANONYMOUS_ENABLED": "true",
        "ANALYTICS_REPORTING_ENABLED": "false",
        "ANALYTICS_CHECK_FOR_UPDATES": "false",
        "ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    }
    environment = {**os.environ, **{f"GF_{name}": value for name, value in settings.items()}}
    home = os.environ.get("CLOSLOOP_GRAFANA_HOME", "/usr/share/grafana")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [grafana_program, "server", "--homepath", home], env=environment, stdout=log, stderr=log
        )
    try:
        address = f"http://127.0.0.1:{port}"
        until_s = time.monotonic() + WAIT_S
        while True:
            try:
                assert ask(address, "/api/health")["database"] == "ok"
                break
            except OSError:
                assert time.monotonic() < until_s, (folder / "log").read_text()[-2000:]
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait()


def ask(address, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.load(answer)


def values_of(address, source, flux):
    """Return the columns of a query's answer through Grafana, which fills in its macros."""
    query = {"refId": "A", "datasource": source, "query": flux, "maxDataPoints": 500}
    asked = {"queries": [{**query, "intervalMs": 1000}], "from": "now-90d", "to": "now"}
    result = ask(address, "/api/ds/query", asked)["results"]["A"]
    assert not result.get("error"), result
    return [column for frame in result["frames"] for column in frame["data"]["values"]]


def filled(text, values):
    return re.sub(r"\$\{(\w+)(:\w+)?\}", lambda found: values[found[1]], text)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_shows_data_in_every_panel_and_is_pictured(path, grafana, sent):
    dashboard = load(path)
    assert ask(grafana, f"/api/dashboards/uid/{dashboard['uid']}")["meta"]["provisioned"]
    chosen = {}
    for variable in dashboard["templating"]["list"]:
        flux = filled(variable["query"]["query"], chosen)
        offered = values_of(grafana, variable["datasource"], flux)[-1]
        name = variable["name"]
        chosen[name] = sent if sent in offered else offered[0]
    for panel in panels_of(dashboard):
        columns = [
            column
            for target in panel["targets"]
            for column in values_of(grafana, panel["datasource"], filled(target["query"], chosen))
        ]
        assert any(columns) or WITHOUT.search(panel["title"]), panel["title"]

    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / f"{path.stem}.png"
    picture.unlink(missing_ok=True)
    words = {f"var-{name}": value for name, value in chosen.items()}
    address = f"{grafana}/d/{dashboard['uid']}?{urllib.parse.urlencode(words)}&kiosk"
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--window-size=1600,1800", "--virtual-time-budget=20000", f"--screenshot={picture}",
         address],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert picture.stat().st_size > 20_000, picture
