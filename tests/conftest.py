"""Tests that need more than Python say so by marker: skipped without it, but in CI they fail.

kernel: the virtual-time kernel. ns3: ns-3 and g++. ssh: OpenSSH's server. redis: redis-server.
influx: victoria-metrics. cluster: Ray. browser: Chromium. root: namespaces of this machine.
sanitizers: gcc with its sanitizers.
containers: a runtime for containers, and their image or what builds it. yang: yanglint,
and SONiC's YANG models (scripts/sonic-yang.sh), without which these tests are skipped in CI, too.
clab: containerlab's schema (scripts/containerlab-schema.sh), in CI likewise.
flux: InfluxData's Flux compiler (scripts/flux.sh) and Node.js, in CI likewise.
grafana: Grafana and InfluxDB 2 (scripts/influxdb.sh), in CI likewise.
oldest_python: the oldest Python that devices may have, beside this one; in CI likewise.
"""

import gc
import getpass
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tuners.learning.learner import request_reproducible_kernels

gc.disable()  # until all tests are collected: pytest_collection_finish
# Power does not fail during tests: what was written is read back without waiting for the disk.
os.fsync = lambda handle: None
# A busy machine fails no test: how long an example takes is nothing that tests hold.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Some tests use torch by themselves, and whoever uses it first in a process decides on its bits.
request_reproducible_kernels()

SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _no_kernel() -> str:
    from orchestration.kernel import find_kernel

    return "" if find_kernel() else "no virtual-time kernel: build it with `closloop kernel build`"


def _no_program(name: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH)
    return "" if found else f"no {name}: install it with scripts/system-packages.sh"


def _no_ray() -> str:
    found = importlib.util.find_spec("ray")
    return "" if found else "no Ray: pip install 'closloop[cluster]'"


def _no_ns3() -> str:
    from orchestration.backends.simulated.program import COMPILER, find_wheel

    if find_wheel() is None:
        return "no ns-3: pip install 'closloop[sim]'"
    return _no_program(COMPILER)


def _skip_without_models() -> None:
    """Skip, in CI too: the models come from GitHub, which a machine for CI need not reach."""
    cache = Path("~/.cache/closloop/sonic-yang").expanduser()
    if not Path(os.environ.get("CLOSLOOP_SONIC_YANG", cache)).is_dir():
        pytest.skip("no YANG models of SONiC: fetch them with scripts/sonic-yang.sh")


def _skip_without_schema() -> None:
    """Skip, in CI too, as containerlab's schema comes from GitHub as well."""
    if not schema_of_containerlab().is_file():
        pytest.skip("no schema of containerlab: fetch it with scripts/containerlab-schema.sh")


def flux_compiler_file() -> Path:
    """Return where InfluxData's Flux compiler is, if it is there."""
    cache = Path("~/.cache/closloop/flux").expanduser()
    return Path(os.environ.get("CLOSLOOP_FLUX", cache)) / "flux-lsp-node.js"


def _skip_without_flux() -> None:
    """Skip, in CI too: neither the compiler nor Node.js is needed for anything else."""
    if not flux_compiler_file().is_file():
        pytest.skip("no Flux compiler: fetch it with scripts/flux.sh")
    if not shutil.which("node"):
        pytest.skip("no node: install Node.js")


def grafana_file() -> str | None:
    """Return Grafana's program, if it is there."""
    return shutil.which("grafana", path=f"{SYSTEM_PATH}{os.pathsep}/usr/share/grafana/bin")


def _skip_without_grafana() -> None:
    """Skip, in CI too: neither server is in Debian's, Python's or Node's registries."""
    if not grafana_file() or "CLOSLOOP_INFLUX_URL" not in os.environ:
        pytest.skip("no Grafana with InfluxDB 2: install both, and run scripts/influxdb.sh")


@cache
def oldest_python_file() -> str:
    """Return a Python of the oldest version that devices may have, "" if there is none."""
    from orchestration.agent import OLDEST_PYTHON

    version = ".".join(map(str, OLDEST_PYTHON))
    of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for path in (*map(str, of_pyenv), shutil.which(f"python{version}")):
        # pyenv's shims are there, and fail, where a version is not chosen
        if path and not subprocess.run([path, "-c", ""], capture_output=True).returncode:
            return path
    return ""


def _skip_without_oldest_python() -> None:
    """Skip, in CI too: a current Debian has no such Python."""
    if not oldest_python_file():
        pytest.skip("no Python as old as devices' may be: `pyenv install 3.9`, for instance")


def schema_of_containerlab() -> Path:
    """Return where containerlab's schema is, if it is there."""
    cache = Path("~/.cache/closloop/containerlab").expanduser()
    return Path(os.environ.get("CLOSLOOP_CONTAINERLAB", cache)) / "clab.schema.json"


@cache
def _no_namespaces() -> str:
    if os.geteuid():
        return "not root: run these tests with sudo"
    from orchestration.backends.emulated.host_kernel import missing_parts
    from orchestration.core.errors import NotReadyError

    try:
        missing_parts()
    except NotReadyError as error:
        return f"{error.message}: {error.remedy}"
    return ""


@cache
def _no_containers() -> str:
    from orchestration.core.errors import NotReadyError
    from orchestration.virtual_rack.containers import require_runtime
    from orchestration.virtual_rack.image import require_builder

    try:
        require_runtime()
        require_builder()
    except NotReadyError as error:
        return f"{error.message}: {error.remedy}"
    return ""


NEEDS = {
    "root": _no_namespaces,
    "containers": _no_containers,
    "kernel": _no_kernel,
    "ns3": _no_ns3,
    "cluster": _no_ray,
    "ssh": lambda: _no_program("sshd"),
    "redis": lambda: _no_program("redis-server"),
    "influx": lambda: _no_program("victoria-metrics"),
    "browser": lambda: _no_program("chromium"),
    "yang": lambda: _no_program("yanglint"),
    "sanitizers": lambda: _no_program("gcc"),  # they come with it
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, why_not in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        if reason := why_not():
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
    if item.get_closest_marker("yang"):
        _skip_without_models()
    if item.get_closest_marker("clab"):
        _skip_without_schema()
    if item.get_closest_marker("flux"):
        _skip_without_flux()
    if item.get_closest_marker("grafana"):
        _skip_without_grafana()
    if item.get_closest_marker("oldest_python"):
        _skip_without_oldest_python()


@pytest.fixture
def flux_compiler() -> Path:
    """The Flux compiler's module for Node.js; for tests with the marker flux."""
    return flux_compiler_file()


@pytest.fixture(scope="session")
def grafana_program() -> str:
    """Grafana's program; for tests with the marker grafana."""
    return str(grafana_file())


@pytest.fixture
def oldest_python() -> str:
    """A Python of the oldest version that devices may have; for tests with the marker."""
    return oldest_python_file()


@pytest.fixture
def containerlab_schema() -> Path:
    """The file of containerlab's schema; for tests with the marker clab."""
    return schema_of_containerlab()


@dataclass(frozen=True)
class Loopback:
    """A running SSH server of this user's on 127.0.0.1."""

    port: int
    user: str
    key_file: Path
    host_key: Path
    known_hosts: Path
    pid: int


@contextmanager
def running_sshd(folder, *more):
    """Run an SSH server of this user's, with `more` options of sshd_config."""
    for name in ("host", "id"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            shutil.which("sshd", path=SYSTEM_PATH), "-D", "-e", "-f", "/dev/null", "-p", str(port),
            *(word for option in (
                f"HostKey={folder / 'host'}", f"AuthorizedKeysFile={folder / 'id.pub'}",
                "ListenAddress=127.0.0.1", "UsePAM=no", "StrictModes=no", "PidFile=none",
                "LogLevel=VERBOSE", *more,
            ) for word in ("-o", option)),
        ],
        stderr=(folder / "log").open("wb"),
    )  # fmt: skip
    try:
        key = " ".join((folder / "host.pub").read_text().split()[:2])
        (folder / "known").write_text(f"[127.0.0.1]:{port} {key}\n")
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.05)
        yield Loopback(
            port, getpass.getuser(), folder / "id", folder / "host.pub", folder / "known",
            server.pid,
        )  # fmt: skip
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


@pytest.fixture(scope="session")
def loopback(tmp_path_factory):
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def jump_hosts(tmp_path_factory):
    """Two more SSH servers, and one that forwards nothing."""
    folders = [tmp_path_factory.mktemp("jump") for _ in range(3)]
    with (
        running_sshd(folders[0]) as first,
        running_sshd(folders[1]) as second,
        running_sshd(folders[2], "AllowTcpForwarding=no") as closed,
    ):
        yield first, second, closed


# The files that take longest, in that order.
LONG = (
    "test_kills_on_rack",
    "test_paths_on_rack",
    "test_campaign_on_rack",
    "test_roce_on_rack",
    "test_deploy_on_rack",
    "test_real_kills",
    "test_protocol_training",
    "test_rack",
    "test_small_problem",
    "test_cluster",
    "test_playbooks",
    "test_server",
    "test_rack_in_real_time",
    "test_report_page",
    "test_environment",
    "test_training",
    "test_containerlab_nodes",
    "test_runner_adaptive",
    "test_dctcp_program",
    "test_rack_of_containers",
    "test_replay",
    "test_trials_in_real_time",
    "test_sink_on_rack",
    "test_leased_interfaces",
    "test_cluster_launcher",
    "test_scaled_rack",
    "test_repeatable",
    "test_one_place",
)


def pytest_collection_modifyitems(items):
    """The longest files go first: one that begins last is waited for (`--no-loadscope-reorder`)."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish():
    """Modules and tests stay until the end: garbage is looked for among what comes after them."""
    gc.collect()
    gc.freeze()
    gc.enable()
