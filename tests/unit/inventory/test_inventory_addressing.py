"""Addresses: an emulated fabric's never change, a rack's are in the prefix that it is given."""

import hashlib
import json
from ipaddress import ip_address, ip_network

import pytest

from inventory.addressing import DEFAULT_PREFIX, emulated_addresses, rack_addresses
from inventory.files import known_testbeds, load_testbed

LINK_LOCAL = ip_network("169.254.0.0/16")
# The beginning of the SHA-256 of every port's address, recorded before racks had their own.
EMULATED = {
    "acc": "9da298936414ea53",
    "acc-fig8": "4f8dd6dcf666e525",
    "drlet-k4": "f8a2261f6cf8c2ae",
    "drlet-k8": "3b9e1c4842e4e845",
    "graphcc": "425ef21701731a93",
    "pet": "0725df797866fd9c",
    "rlcc-64": "fe8c87dcd5b04021",
    "rlcc-7": "ecc7a4bdc4eeda3c",
}


@pytest.mark.parametrize("name", known_testbeds())
def test_the_emulations_addresses_decide_its_hashes_and_stay(name):
    found = {str(index): text for index, text in emulated_addresses(load_testbed(name)).items()}
    text = json.dumps(found, sort_keys=True).encode()
    assert hashlib.sha256(text).hexdigest()[:16] == EMULATED[name]


@pytest.mark.parametrize("prefix", [DEFAULT_PREFIX, "10.64.0.0/16", "172.31.252.0/22"])
@pytest.mark.parametrize("name", ["acc-fig8", "graphcc", "pet"])
def test_a_racks_addresses_are_in_its_prefix_each_in_its_leafs_block(name, prefix):
    testbed = load_testbed(name)
    found = rack_addresses(testbed, prefix)
    given = [*found.nics.values(), *found.routers.values()]
    assert len(set(given)) == len(given) == len(testbed.switches) + len(found.nics)
    blocks = {leaf: ip_network(block) for leaf, block in found.blocks.items()}
    for index, address in found.nics.items():
        leaf = testbed.peer_device(testbed.ports[index]).name
        # the first and the last address of a block could be taken for the block's own
        assert ip_address(address) in list(blocks[leaf].hosts())
    for address in map(ip_address, found.routers.values()):
        assert address not in LINK_LOCAL
        assert address in found.prefix
        assert not any(address in block for block in blocks.values())
    assert all(block.subnet_of(ip_network(prefix)) for block in blocks.values())


def test_blocks_are_as_large_as_people_read_them_where_there_is_room():
    found = rack_addresses(load_testbed("graphcc"))
    assert found.blocks["leaf1"] == "198.18.1.0/24"
    assert (min(found.nics.values()), found.routers["leaf1"]) == ("198.18.1.1", "198.18.0.1")


def test_a_prefix_that_is_too_small_is_refused_with_what_it_takes():
    with pytest.raises(ValueError, match=r"needs 40 addresses, and 198\.18\.0\.0/27 has 32"):
        rack_addresses(load_testbed("graphcc"), "198.18.0.0/27")
