"""`closloop doctor`: checks what this machine can do, and says how to get what is missing."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from collectors.bpf.compile import flow_table_object
from orchestration.backends.emulated import forwarding
from orchestration.backends.simulated.program import COMPILER, find_program, find_wheel
from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.core.machine import available_memory_bytes
from orchestration.core.problems import Code, Problem, message_and_remedy
from orchestration.datapath.library import load_engine
from orchestration.kernel import kernel_to_build
from orchestration.kernel.boot import check_kernel, memory_dir
from orchestration.kernel.build import missing_tools
from orchestration.kernel.cache import find_kernel, kernel_folder
from orchestration.render.numbers import clock_text
from orchestration.render.table import Span, Style, table
from orchestration.render.terminal import show

State = Literal["ok", "missing", "note"]
_GUEST_BYTES = 1_500_000_000
_HOST_QDISCS = {
    "red": "CONFIG_NET_SCH_RED",
    "tbf": "CONFIG_NET_SCH_TBF",
    "netem": "CONFIG_NET_SCH_NETEM",
    "fq": "CONFIG_NET_SCH_FQ",
    "ets": "CONFIG_NET_SCH_ETS",
}
_OPTIONAL_TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "iperf3": "iperf3",
    "chromium": "chromium",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check: `what` was checked, and with which `result`.

    With the state "missing", trials cannot run on the emulated backend; with "note" they can.
    """

    what: str
    state: State
    result: str
    remedy: str = ""

    @classmethod
    def of(cls, what: str, state: State, error: ClosloopError, about: str = "") -> Finding:
        """Return the finding of a check that failed with an error."""
        problems = (problem.at(about) for problem in error.problems)
        return cls(what, state, **message_and_remedy(problems, "result"))

    @property
    def problem(self) -> Problem:
        """What is wrong, and the remedy."""
        return Problem("", self.result, self.remedy, Code.NOT_READY)

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON-ready data."""
        data = {"what": self.what, "state": self.state, "found": self.result}
        return {**data, "remedy": self.remedy}


def examine(*, boot: bool, benchmark: bool = False) -> tuple[Finding, ...]:
    """Check this machine.

    With `boot`, the virtual-time kernel is booted; with `benchmark`, packets are forwarded.
    """
    return (
        *([_forwarding()] if benchmark else []),
        _python(),
        _packet_engine(),
        _kernel(boot=boot),
        _build_tools(),
        _memory(),
        _disk(),
        _cores(),
        _rights(),
        _host_qdiscs(),
        _bpf(),
        _flow_table(),
        _ns3(),
        _tools(),
    )


def _forwarding() -> Finding:
    what = "forwarding"
    try:
        measured = forwarding.measure(forwarding.MEASURE_S)
    except NotReadyError as error:
        return Finding.of(what, "note", error)
    forwarding.store_hops_per_s(measured.hops_per_s)
    marking = "with marking" if measured.judged else "without marking"
    found = f"{measured.hops_per_s:,} packet-hops a second, {marking}, for racks in real time"
    return Finding(what, "ok", found)


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()}, {sys.executable}"
    return Finding(
        "Python", "ok" if good else "missing", found, "" if good else "use 3.11 or newer"
    )


def _packet_engine() -> Finding:
    what = "packet engine"
    try:
        about = load_engine().about
    except ClosloopError as error:
        return Finding.of(what, "note" if find_kernel() else "missing", error)
    return Finding(what, "ok", f"{about['engine']}, compiled by {about['compiler']}")


def _kernel(*, boot: bool) -> Finding:
    what = "virtual-time kernel"
    try:
        kernel = find_kernel()
        if kernel is None:
            (build,) = kernel_to_build()
            found = (
                f"not built: a campaign's first run builds it, in about {clock_text(build.wall_s)}"
            )
            return Finding(
                what, "note", found, "only if a campaign needs it: closloop kernel build"
            )
        if not boot:
            return Finding(what, "ok", f"Linux {kernel.version}, {kernel.hash}")
        report = check_kernel(kernel.path)
        found = f"Linux {report.release}, boots in {report.wall_s:.1f} s"
        return Finding(what, "ok", found)
    except ClosloopError as error:
        return Finding.of(what, "missing", error)


def _build_tools() -> Finding:
    missing = missing_tools()
    if not missing:
        return Finding("tools to build it", "ok", "gcc, bpf-gcc, make, flex, bison, bc, xz")
    packages = " ".join(sorted(set(missing.values())))
    return Finding(
        "tools to build it", "note", f"no {', '.join(missing)}", f"apt-get install {packages}"
    )


def _memory() -> Finding:
    available = available_memory_bytes()
    found = f"{available / 1e9:.1f} GB available"
    try:
        found += f", guests' memory in {memory_dir(_GUEST_BYTES)}"
    except ClosloopError as error:
        return Finding.of("memory", "note", error, "trials in a kernel")
    return Finding("memory", "ok", found)


def _disk() -> Finding:
    folder = kernel_folder()
    while not folder.exists():
        folder = folder.parent
    cache, here = (shutil.disk_usage(path).free / 1e9 for path in (folder, "."))
    found = f"{here:.0f} GB free here, {cache:.0f} GB in the cache"
    if min(cache, here) < 1:
        return Finding("disk", "missing", found, "free some space: a kernel build takes 4 GB")
    return Finding("disk", "ok", found)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding("cores", "ok", f"{cores}: as many trials can run side by side")


def _rights() -> Finding:
    if os.geteuid() == 0:
        return Finding("rights", "ok", "root (not needed for the emulated backend)")
    path = Path("/proc/sys/user/max_user_namespaces")
    limit = int(path.read_text()) if path.exists() else 0
    spaces = "user namespaces allowed" if limit else "no user namespaces"
    return Finding("rights", "ok", f"not root, {spaces} (neither is needed to emulate)")


def _host_qdiscs() -> Finding:
    config = _host_config()
    if not config:
        return Finding("host kernel's qdiscs", "note", "its configuration is not readable")
    have = [name for name, option in _HOST_QDISCS.items() if f"{option}=" in config]
    lack = [name for name in _HOST_QDISCS if name not in have]
    found = f"{', '.join(have) or 'none'}" + (f"; no {', '.join(lack)}" if lack else "")
    remedy = "not needed: trials use the virtual-time kernel's own" if lack else ""
    return Finding("host kernel's qdiscs", "note" if lack else "ok", found, remedy)


def _host_config() -> str:
    packed = Path("/proc/config.gz")
    plain = Path(f"/boot/config-{platform.release()}")
    try:
        if packed.exists():
            return gzip.decompress(packed.read_bytes()).decode()
        return plain.read_text() if plain.exists() else ""
    except OSError:
        return ""


def _bpf() -> Finding:
    def sysctl(name: str) -> str:
        path = Path("/proc/sys") / name
        try:
            return path.read_text().strip()
        except OSError:
            return "unknown"

    jit = {"0": "off", "1": "on", "2": "on"}.get(sysctl("net/core/bpf_jit_enable"), "unknown")
    free = sysctl("kernel/unprivileged_bpf_disabled") == "0"
    found = f"host: JIT {jit}, {'any user' if free else 'root only'}; guest: interpreter"
    return Finding("BPF", "ok", found)


def _flow_table() -> Finding:
    what = "flow table"
    try:
        return Finding(what, "ok", f"compiled: {flow_table_object().name}")
    except ClosloopError as error:
        return Finding.of(what, "note", error, "tuners that observe flows")


def _ns3() -> Finding:
    what = "ns-3"
    wheel = find_wheel()
    if wheel is None:
        return Finding(
            what, "note", "not installed: no --on simulated", "pip install 'closloop[sim]'"
        )
    program = find_program()
    if program is not None:
        return Finding(what, "ok", f"{wheel.version}, compiled: {program.hash}")
    if shutil.which(COMPILER) is None:
        found = f"{wheel.version}, but no {COMPILER} to compile with"
        return Finding(what, "note", found, "apt-get install g++")
    return Finding(what, "ok", f"{wheel.version}, to be compiled when it is first used")


def _tools() -> Finding:
    lack = [tool for tool in _OPTIONAL_TOOLS if not shutil.which(tool)]
    have = [tool for tool in _OPTIONAL_TOOLS if tool not in lack]
    if not lack:
        return Finding("optional tools", "ok", ", ".join(have))
    packages = " ".join(sorted({_OPTIONAL_TOOLS[tool] for tool in lack}))
    return Finding(
        "optional tools",
        "note",
        f"{', '.join(have) or 'none'}; no {', '.join(lack)}",
        f"install them if you need them: apt-get install {packages}",
    )


_STYLES: dict[str, Style] = {"ok": "good", "note": "warning", "missing": "bad"}


@verb("Examples:  closloop doctor  |  closloop doctor --boot  |  closloop doctor --json")
def doctor(
    boot: Annotated[bool, "Boot the virtual-time kernel too."] = False,
    benchmark: Annotated[
        bool, "Measure how many packets this machine forwards, for racks in real time."
    ] = False,
    as_json: Json = False,
) -> None:
    """Check what this machine can do, and say how to get what is missing.

    Exit code: 0 trials can run on the emulated backend, 3 they cannot.
    """

    findings = examine(boot=boot, benchmark=benchmark)
    ready = all(finding.state != "missing" for finding in findings)
    if as_json:
        data = {"ready": ready, "findings": [finding.to_json() for finding in findings]}
        print_json(data, indent=2)
    else:
        rows = []
        for finding in findings:
            mark = Span(finding.state, _STYLES[finding.state])
            rows.append([mark, finding.what, str(finding.problem)])
        end = (
            "ready: closloop run examples/quickstart.yml"
            if ready
            else "not ready for the emulated backend; the fluid backend runs anywhere (--on fluid)"
        )
        show(table(("", "", ""), (), rows, heads=False), f"\n{end}")
    if not ready:
        raise typer.Exit(3)
