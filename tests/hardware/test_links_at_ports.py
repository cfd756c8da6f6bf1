"""Programs at a port's egress: who comes first, and that a link goes with its descriptor."""

import subprocess
import sys

import pytest

from orchestration.agent.bpf import tcx
from orchestration.agent.bpf.load import kernel_release

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(kernel_release() < tcx.OLDEST, reason="the kernel is older than Linux 6.6"),
]

TRIED = """
import os, socket
from orchestration.agent.bpf import tcx
from collectors.bpf.compile import flow_table_object
from orchestration.agent.bpf.elf import read_program
from orchestration.agent.bpf.load import data_map, load

program = read_program(flow_table_object(on_a_rack=True).read_bytes())
data, _ = data_map(program.data_bytes, b"tried")
loopback = socket.if_nametoindex("lo")


def linked(**how):
    link = tcx.link(loopback, load(program.linked(data), b"tried"), **how)
    return link, tcx.linked(loopback)


_, one = linked()
_, two = linked()
third, three = linked(first=True)
assert len(one) == 1 and two[:1] == one and three[1:] == two, (one, two, three)
os.close(third)
assert tcx.linked(loopback) == two
"""


def test_a_program_may_come_first_and_goes_with_its_link():
    argv = ["unshare", "--net", sys.executable, "-c", TRIED]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
