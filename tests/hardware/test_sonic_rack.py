"""The SONiC-like switch of a virtual rack: what CONFIG_DB says is what the kernel's RED does."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from inventory.ansible import load_rack
from inventory.files import load_testbed
from orchestration.agent.sonic.configdb import row_after_undo, write_position
from orchestration.agent.sonic.resp import SOCKET
from orchestration.backends.hardware.sonic.config import desired_tables
from orchestration.virtual_rack.control import up

pytestmark = [pytest.mark.kernel, pytest.mark.redis, pytest.mark.ssh, pytest.mark.slow]

# Runs in the rack, as the controller.
SCRIPT = """
import sys
import time
from pathlib import Path

import numpy as np

from inventory.ansible import load_rack
from orchestration.agent.linux import qdiscs
from orchestration.device.client import AgentClient
from orchestration.backends.hardware.sonic.switch import SonicSwitch
from orchestration.core.marking_probability import red_max_p

rack, device, provisioned = load_rack(Path(sys.argv[1])), sys.argv[2], sys.argv[3] == "provisioned"
agent = AgentClient(rack.access[device], rack.known_hosts_file, ["sonic", "redq"])
switch = SonicSwitch(rack, device)
leaves = [[name, qdiscs.leaf_handle(0)] for name in rack.access[device].interfaces]


def red(row):
    return row[5], row[6], row[7]


def asked(request):
    return switch.reading(agent.call(request[0], **request[1]))


rows = agent.call("red.open", queues=leaves)["rows"]
if provisioned:
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
else:
    time.sleep(0.1)  # of the rack's time: nobody waits for what is unbound
    print([red(row) for row in agent.call("red.read")["rows"]])
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

    def probe(state):
        with (folder / "said").open("wb") as said:
            argv = [sys.executable, "-c", SCRIPT, str(rack.inventory), device, state]
            code = rack.run(argv, stdout=said, stderr=said)
        assert code == 0, (folder / "said").read_text()
        return (folder / "said").read_text()

    def tell_redis(commands):
        lines = "".join(" ".join(f'"{word}"' for word in words) + "\n" for words in commands)
        (folder / "commands").write_text(lines)
        shell = f"ssh {device} redis-cli -s {SOCKET} -n 4 < {folder / 'commands'}"
        assert rack.run(["sh", "-c", shell]) == 0

    def rows():
        return json.loads(rack.dump(device))["CONFIG_DB"]

    def hset(key, row):
        return ["hset", key, *(word for pair in row.items() for word in pair)]

    try:
        before, stock = rows(), probe("stock")
        tables = desired_tables(load_rack(rack.inventory), device)
        wanted = {
            f"{table}|{key}": row
            for table in sorted(tables, key=write_position)
            for key, row in tables[table].items()
        }
        tell_redis([hset(key, row) for key, row in wanted.items()])
        probe("provisioned")
        # orchagent would go on polling, or crash, if some rows were removed
        after = {key: row_after_undo(key, before.get(key)) for key in {**before, **wanted}}
        undo = [hset(key, after[key]) for key in wanted if after[key]]
        undo += [
            ["hdel", key, *gone]
            for key, row in wanted.items()
            if after[key] and (gone := [field for field in row if field not in after[key]])
        ]
        undo += [["del", key] for key in reversed(wanted) if not after[key]]
        tell_redis(undo)
        assert rows() == {key: row for key, row in after.items() if row}
        assert probe("stock") == stock
        with (folder / "crash").open("wb") as said:
            assert rack.run(["ssh", device, CRASH], stdout=said, stderr=said) == 0
        assert "PFC_WD|GLOBAL was removed" in (folder / "crash").read_text()
    finally:
        rack.down()
        shutil.rmtree(folder)
