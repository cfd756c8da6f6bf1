"""Each piece of memory that the engine asks for may be refused: an error, and nothing worse."""

from itertools import count

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.backends.emulated.process_fabric import fabric_arrays
from orchestration.core.errors import TrialError
from orchestration.datapath.engine_build import (
    BUILDS,
    ENGINE,
    FLAGS,
    Built,
    Source,
    compile_library,
    find_compiler,
)
from orchestration.datapath.library import open_library
from orchestration.datapath.packet_engine import PacketEngine
from tests.testbeds import leaf_spine

# The engine, of whose requests for memory all from one on are refused, or that one alone.
REFUSING = """
#include <stdlib.h>
#include <sys/mman.h>

static long cl_until = -1;
static int cl_only_one;

void cl_refuse(long after, int only_one);
void cl_refuse(long after, int only_one)
{
	cl_until = after;
	cl_only_one = only_one;
}

static int cl_refuses(void)
{
	if (cl_until < 0)
		return 0;
	if (cl_until--)
		return 0;
	cl_until = cl_only_one ? -1 : 0;
	return 1;
}

#define calloc(count, bytes) (cl_refuses() ? NULL : calloc(count, bytes))
#define malloc(bytes) (cl_refuses() ? NULL : malloc(bytes))
#define realloc(at, bytes) (cl_refuses() ? NULL : realloc(at, bytes))
#define aligned_alloc(unit, bytes) (cl_refuses() ? NULL : aligned_alloc(unit, bytes))
#define mmap(...) (cl_refuses() ? MAP_FAILED : mmap(__VA_ARGS__))
#include "library.c"
"""
NICS = {
    "cnp_interval_ns": 50_000,
    "timeout_ns": 10_000_000,
    "payload_bytes": 64,
    "ack_every": 1,
    "window_bytes": 0,
    "parameters": [100_000] + [0] * 23,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusing")
    (folder / "refusing.c").write_text(REFUSING)
    flags = (*FLAGS, *BUILDS["checked"])
    source = Source("the refusing engine", folder / "refusing.c", flags, ENGINE)
    compile_library(source, find_compiler(), folder / "library.so")
    loaded = open_library(Built(folder / "library.so", "", "", "", flags), ENGINE / "api.h")
    loaded.ffi.cdef("void cl_refuse(long after, int only_one);")
    return loaded


@pytest.fixture(scope="module")
def fabric(library, tmp_path_factory):
    """A fabric with all kinds of state, and so many small packets that all lists grow."""
    path = tmp_path_factory.mktemp("fabric") / "fabric.yml"
    switch = "{buffer: 40MB, alpha: 1, pfc: [0], watchdog: {detect: 10ms, restore: 10ms}}"
    path.write_text(leaf_spine("f", 2, 1, 3, "100Gbps", "400Gbps", delay="10us", switch=switch))
    testbed = load_testbed(str(path))
    hosts = [port.index for port in testbed.ports if port.device.startswith("h")]
    flows = np.zeros(120, dtype=library.dtype("cl_flow"))
    flows["bytes"] = 20_000
    flows["src_port"] = np.tile(hosts[:3], 40)
    flows["dst_port"] = np.tile(hosts[3:], 40)
    flows["udp_source"] = 1_000 + np.arange(120)
    return fabric_arrays(testbed, 1, library), flows


def outcome(library, fabric, after, only_one):
    """Run the engine; return its error, "" for none, and how many flows have ended then."""
    arrays, flows = fabric
    library.lib.cl_refuse(after, only_one)
    try:
        engine = PacketEngine(arrays, library)
        engine.post(engine.policy("fixed"), NICS, flows)
        engine.run(2_000_000)
        return "", engine.counts()["flows_done"]
    except TrialError as error:
        return error.message, 0
    finally:
        library.lib.cl_refuse(-1, 0)


@pytest.mark.parametrize("only_one", [0, 1], ids=["from then on", "once"])
def test_every_request_may_be_refused(library, fabric, only_one):
    _, done = outcome(library, fabric, -1, 0)
    assert done > 0
    errors = []
    for after in count():
        error, ended = outcome(library, fabric, after, only_one)
        errors.append(error)
        if not error and (not only_one or after > 40):
            break
        assert not error or "no memory" in error
        assert error or ended == done  # less was asked for then
    assert {error.partition(": ")[2] for error in errors if error} == {
        "no memory for an engine",
        "no memory for so large a fabric",
        "no memory for so many flows",
        "no memory for the flows of a NIC",
        "no memory for what arrives at a switch",
    }
