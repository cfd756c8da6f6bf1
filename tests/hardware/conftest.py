"""A SONiC switch on Redis; a virtual rack of two spines, one SONiC-like, two leaves, four hosts."""

import io
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from own_machine import own_machine  # noqa: F401 (a fixture)
from rack_lab import bare, lab, unchanged  # noqa: F401 (fixtures)
from real_rack import four_devices, machine_before  # noqa: F401 (fixtures)
from sonic_rig import provisioned, rig, server, streaming  # noqa: F401 (fixtures)

from tests.testbeds import leaf_spine

EIGHT = leaf_spine("lab", 2, 2, 2, "25Gbps", "100Gbps", buffer="16MB")


@pytest.fixture(scope="module")
def virtual_rack(tmp_path_factory):
    """The rack, up and not provisioned; h1 and h2 have RoCE NICs."""
    from inventory.files import load_testbed
    from orchestration.virtual_rack.control import up

    folder = tmp_path_factory.mktemp("rack")
    (folder / "lab.yml").write_text(EIGHT)
    testbed = load_testbed(str(folder / "lab.yml"))
    rack, _ = up(testbed, sonic=("spine2",), roce=("h1", "h2"), folder=folder / "lab")
    yield rack
    rack.down()


@pytest.fixture
def in_rack(virtual_rack):
    """Run a program in the rack; return its exit code and all that it printed."""

    def run(*argv, **options):
        printed = io.BytesIO()
        code = virtual_rack.run(argv, stdout=printed, stderr=printed, **options)
        return code, printed.getvalue().decode()

    return run


@pytest.fixture
def on_device(in_rack):
    """Run a shell command on a device over SSH; return its exit code and all that it printed."""

    def run(device, command, user=None):
        login = ["-l", user] if user else []
        return in_rack("ssh", "-o", "BatchMode=yes", *login, device, command)

    return run
