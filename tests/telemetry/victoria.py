"""Debian's victoria-metrics, a real server that speaks InfluxDB's write API."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

PATIENCE_S = 120.0
TOKEN = "t0k3n-of-mine"
# All there is, of clocks that are ahead of this machine's too, as a virtual rack's is.
_ALWAYS = {"start": "0", "end": "4000000000"}


class Victoria:
    """Debian's victoria-metrics with data of its own. It keeps milliseconds only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        program = shutil.which("victoria-metrics")
        assert program is not None
        return [
            program, "-storageDataPath", str(self._folder / "data"),
            "-httpListenAddr", f"127.0.0.1:{self.port}", "-retentionPeriod", "100y",
            # As in InfluxDB, a point that comes again is one point.
            "-dedup.minScrapeInterval", "1ms",
        ]  # fmt: skip

    def start(self) -> None:
        self._process = subprocess.Popen(self.command, stderr=(self._folder / "log").open("ab"))
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._get("/health")
                return
            except OSError:
                assert time.monotonic() < until, (self._folder / "log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def export(self, **tags: str) -> dict[str, list[dict]]:
        """Return the series with these tags by metric name: labels, `values`, `timestamps`."""
        self._get("/internal/force_flush")
        wanted = ",".join(f'{name}="{value}"' for name, value in tags.items())
        query = urllib.parse.urlencode({"match[]": "{" + wanted + "}", **_ALWAYS})
        found: dict[str, list[dict]] = {}
        for line in self._get(f"/api/v1/export?{query}").splitlines():
            one = json.loads(line)
            name = one["metric"].pop("__name__")
            found.setdefault(name, []).append(one)
        return found

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()
