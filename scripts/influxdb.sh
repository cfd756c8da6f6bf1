#!/bin/sh
# Runs the telemetry tests against InfluxDB 2 itself, where it is installed (influxd in the PATH), and has
# Grafana itself, where it is installed, show the dashboards; their pictures go to runs/dashboards:
#
#   scripts/influxdb.sh
#
# It starts a server of its own, on a free port of this machine, with its files in a temporary folder,
# sets it up (https://docs.influxdata.com/influxdb/v2/api/setup/), and ends it. No other is touched.
set -eu

cd "$(dirname "$0")/.."
python=.venv/bin/python
command -v influxd >/dev/null || {
    echo "influxd is not in the PATH: install InfluxDB 2, https://docs.influxdata.com/influxdb/v2/install/" >&2
    exit 1
}
folder=$(mktemp -d)
port=$($python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
influxd --bolt-path "$folder/influxd.bolt" --engine-path "$folder/engine" \
    --sqlite-path "$folder/influxd.sqlite" --http-bind-address "127.0.0.1:$port" \
    --reporting-disabled >"$folder/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true; rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export CLOSLOOP_INFLUX_URL="http://127.0.0.1:$port" CLOSLOOP_INFLUX_ORG=lab
export CLOSLOOP_INFLUX_BUCKET=runs CLOSLOOP_INFLUX_TOKEN="of-this-run-$$"
$python - <<'PYTHON' || { tail -5 "$folder/log" >&2; exit 1; }
import json
import os
import sys
import time
import urllib.error
import urllib.request

about = {key: os.environ[f"CLOSLOOP_INFLUX_{key.upper()}"] for key in ("org", "bucket", "token")}
body = json.dumps({**about, "username": "closloop", "password": "closloop-tests"}).encode()
request = urllib.request.Request(
    os.environ["CLOSLOOP_INFLUX_URL"] + "/api/v2/setup", body, {"Content-Type": "application/json"}
)
until_s = time.monotonic() + 60
while True:
    try:
        urllib.request.urlopen(request, timeout=10).close()
        break
    except urllib.error.HTTPError as error:
        sys.exit(f"InfluxDB refuses its set-up: {error.code} {error.read().decode()}")
    except OSError as error:  # it is not up yet
        if time.monotonic() > until_s:
            sys.exit(f"influxd does not answer: {error}")
        time.sleep(0.2)
PYTHON
$python -m pytest tests/telemetry/test_pull.py tests/telemetry/test_grafana.py "$@"
