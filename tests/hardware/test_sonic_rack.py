"""The SONiC-like switch of a virtual rack: what CONFIG_DB says is what the kernel's RED does."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.virtual_rack.control import up

pytestmark = [pytest.mark.kernel, pytest.mark.redis, pytest.mark.ssh, pytest.mark.slow]

# Runs in the rack, as the controller.
SCRIPT = """
import sys
import time
from pathlib import Path

import numpy as np

from inventory.ansible import load_rack
from orchestration.device import qdiscs
from orchestration.device.agent.configdb import undone
from orchestration.device.client import AgentClient
from orchestration.backends.hardware.sonic.config import TABLES, desired_tables
from orchestration.backends.hardware.sonic.switch import SonicSwitch
from orchestration.model.red_law import red_max_p

rack, device = load_rack(Path(sys.argv[1])), sys.argv[2]
agent = AgentClient(rack.access[device], rack.known_hosts_file, ["sonic", "redq"])
switch = SonicSwitch(rack, device)
leaves = [[name, qdiscs.leaf_handle(0)] for name in rack.access[device].interfaces]


def red(row):
    return row[5], row[6], row[7]


def asked(request):
    return switch.reading(agent.call(request[0], **request[1]))


stock = [red(row) for row in agent.call("red.open", queues=leaves)["rows"]]
before = agent.call("sonic.dump", tables=list(TABLES))
wanted = {table: {**before[table], **rows} for table, rows in desired_tables(rack, device).items()}
agent.call("sonic.restore", tables=wanted)
asked(switch.open_request())
after = asked(
    switch.set_request(np.array([1]), np.array([5000]), np.array([51_200]), np.array([0.2]))
)
# as requested, and as rounded
assert (after.kmin_bytes[1], after.kmax_bytes[1], after.pmax[1]) == (5000, 51_200, 0.2)
rows = agent.call("red.read")["rows"]
assert red(rows[1]) == (5120, 51_200, red_max_p(0.2)), rows
never = rack.testbed.queues[0].buffer_bytes
assert rows[0][5] == rows[0][6] >= never, rows
assert set(switch.sources()) >= {"qlen_bytes", "marked_packets"}
agent.call("sonic.restore", tables=before)
for table, found in agent.call("sonic.dump", tables=list(TABLES)).items():
    keys = {*before[table], *found}
    assert found == {key: undone(f"{table}|{key}", before[table].get(key)) for key in keys}, table
time.sleep(0.1)  # of the rack's time: nobody waits for what is unbound
assert [red(row) for row in agent.call("red.read")["rows"]] == stock
agent.close()
"""

# What nobody does, as orchagent ends by it: then nothing counts, and Redis stays.
CRASH = """
set -e
redis-cli -s /var/run/redis/redis.sock -n 4 del 'PFC_WD|GLOBAL'
for _ in $(seq 100); do pgrep -x syncd >/dev/null || break; sleep 0.05; done
! pgrep -x syncd
redis-cli -s /var/run/redis/redis.sock -n 4 exists 'DEVICE_METADATA|localhost' | grep -x 1
tail -n 1 /var/log/sonic.log
"""


def test_thresholds_asked_of_redis_are_the_kernels_and_go_again():
    testbed = load_testbed("rlcc-7")
    device = testbed.switches[0]
    folder = Path(tempfile.mkdtemp(prefix="closloop-rack-"))
    rack, _ = up(testbed, sonic=[device], folder=folder / "rack")
    try:
        with (folder / "said").open("wb") as said:
            argv = [sys.executable, "-c", SCRIPT, str(rack.inventory), device]
            code = rack.run(argv, stdout=said, stderr=said)
        assert code == 0, (folder / "said").read_text()
        with (folder / "crash").open("wb") as said:
            assert rack.run(["ssh", device, CRASH], stdout=said, stderr=said) == 0
        assert "PFC_WD|GLOBAL was removed" in (folder / "crash").read_text()
    finally:
        rack.down()
        shutil.rmtree(folder)
