"""Lives of campaigns that are not alone: beside a server, on nodes of a cluster, and on a rack."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for place in (TESTS, TESTS / "telemetry"):
    sys.path.insert(0, str(place))

from left import commands_of, processes  # noqa: E402
from lives import ROOT, Around, Campaign, Disk, Row, completed, disturbed, undisturbed  # noqa: E402

from orchestration.bench.rack import program  # noqa: E402
from orchestration.core.errors import TrialError  # noqa: E402

_CALM = ("controller", "interrupt", "terminate", "worker")


def beside_a_server(name: str, folder: Path, kills: int, dice: random.Random) -> Iterator[Row]:
    """Records go to a server, which stops and starts; at the end it has what the archive has."""
    from agreement import agree
    from test_server import write_campaign
    from victoria import TOKEN, Victoria

    server = Victoria(folder)
    about = {"URL": server.url, "ORG": "lab", "BUCKET": "runs", "TOKEN": TOKEN}
    os.environ.update({f"CLOSLOOP_INFLUX_{key}": value for key, value in about.items()})

    def own() -> set[int]:
        return {pid for pid in processes() if "victoria" in commands_of(pid)[0]}

    def stop(command: subprocess.Popen[bytes]) -> None:
        server.stop()
        time.sleep(dice.random())
        server.start()

    def sender(command: subprocess.Popen[bytes]) -> None:
        for pid in processes():
            if any("telemetry" in word for word in commands_of(pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    file = write_campaign(folder, repeats=6, duration_ms=60, testbed="graphcc")
    alone = Around(("-j", "1"))
    beside = Around(
        (*alone.options, "--sink", "influx"), _CALM, {"server": stop, "sender": sender}, own
    )
    reference, takes_s, wrong = undisturbed(Campaign(file, folder / "undisturbed", alone))
    campaign = Campaign(file, folder / "runs", beside)
    server.start()
    try:
        yield from disturbed(name, campaign, reference, takes_s, kills, dice, Disk(folder.parent))
        wrong += completed(campaign, reference)
        pushed = subprocess.run(
            program("push", str(campaign.folder)),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        if pushed.returncode:
            wrong.append(f"push ends with {pushed.returncode}: {pushed.stderr}")
        try:
            agree(server, campaign.folder, 12)
        except AssertionError as error:
            wrong.append(f"server and archive differ: {error}")
    finally:
        server.stop()
    if wrong:
        yield Row(name, "nobody: the last run", 0.0, wrong=wrong)


def on_nodes(name: str, folder: Path, kills: int, dice: random.Random) -> Iterator[Row]:
    """Trials run on three nodes of a Ray cluster, which are lost and come back."""
    import ray
    from cluster_trials import write_campaign
    from test_cluster import Nodes

    os.environ.update(PYTHONPATH=str(ROOT), RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    file = write_campaign(folder, repeats=8, nap_s=0.3)
    alone = Around(files=("ray",))
    reference, takes_s, wrong = undisturbed(Campaign(file, folder / "undisturbed", alone))
    nodes = Nodes()

    def lose(command: subprocess.Popen[bytes]) -> None:
        nodes.replace(dice.randrange(2))

    def own() -> set[int]:
        """Return Ray's processes; those that run trials on nodes are the run's."""
        return {pid for pid in processes() if not _is_of_a_run(pid)}

    around = Around(
        ("--cluster", nodes.address),
        ("controller", "interrupt", "terminate"),
        {"node": lose},
        own,
        ("ray",),
        loads_s=4.0,
    )
    campaign = Campaign(file, folder / "runs", around)
    try:
        yield from disturbed(name, campaign, reference, takes_s, kills, dice, Disk(folder.parent))
        wrong += completed(campaign, reference)
    finally:
        ray.shutdown()
        nodes.shutdown()
        shutil.rmtree("/tmp/ray", ignore_errors=True)  # what the cluster has logged
    if wrong:
        yield Row(name, "nobody: the last run", 0.0, wrong=wrong)


def _is_of_a_run(pid: int) -> bool:
    words = commands_of(pid)
    return "--cluster" in words or any("orchestration.cluster.host" in word for word in words)


def on_racks(name: str, folder: Path, kills: int, dice: random.Random) -> Iterator[Row]:
    """Racks in real time, whose commands, agents, devices and reapers are killed."""
    from orchestration.bench.real_kills import disturb

    # a rack's sockets have names of 108 bytes at most
    with tempfile.TemporaryDirectory(prefix="soak-") as short:
        try:
            for row in disturb(Path(short), kills, dice.randrange(10**6)):
                wrong = [f"left: {line}" for line in row.get("differs", ())]
                wrong += ["hangs"] * row["hung"]
                during, victim = f"{name} {row['during']}", str(row["victim"])
                yield Row(during, victim, float(row["after_s"]), wrong=wrong)
        except TrialError as error:  # without any kill
            yield Row(name, "nobody", 0.0, wrong=[error.message, *error.console.splitlines()])
