"""Links between switches that a testbed file slows down: which, how much, and ideal times."""

from collections import Counter

import pytest

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.core.errors import InputError
from tests.testbeds import leaf_spine

TESTBED = leaf_spine("slowed", 4, 5, 2, "10Gbps", "10Gbps", buffer="4MB", slow_links="SLOW")


def load(tmp_path, slow):
    path = tmp_path / "slowed.yml"
    path.write_text(TESTBED.replace("SLOW", slow))
    return load_testbed(str(path))


def slowed(testbed):
    return {link.index for link in testbed.links if link.rate_bps < 10**10}


def test_a_share_of_links_is_drawn_by_the_seed_and_slow_both_ways(tmp_path):
    testbed = load(tmp_path, "{share: 0.25, factor: 0.5, seed: 7}")
    rates = Counter(link.rate_bps for link in testbed.links)
    assert rates == {10**10: 8 + 15, 5 * 10**9: 5}
    ends = [(testbed.links[n].a, testbed.links[n].b) for n in slowed(testbed)]
    assert {testbed.ports[end].rate_bps for pair in ends for end in pair} == {5 * 10**9}
    assert all(index >= 8 for index in slowed(testbed)), "not those of hosts"
    assert slowed(testbed) == slowed(load(tmp_path, "{share: 0.25, factor: 0.1, seed: 7}"))
    assert slowed(testbed) != slowed(load(tmp_path, "{share: 0.25, factor: 0.5, seed: 8}"))


def test_named_links_and_ideal_times_by_the_fastest_path(tmp_path):
    testbed = load(tmp_path, "{factor: 0.2, links: [leaf1-spine1, spine2-leaf2]}")
    names = testbed.links_by_name
    assert slowed(testbed) == {*names["leaf1-spine1"], *names["leaf2-spine2"]}
    path = PathTable(testbed).path("h1", "h3")
    assert path.rate_bps == 10**10
    # spine1 is slow from leaf1, spine2 towards leaf2: the first that is left is spine3
    assert names["leaf1-spine3"][0] in path.links


@pytest.mark.parametrize(
    ("slow", "says"),
    [
        ("{factor: 0.5}", "slow_links needs either share or links"),
        ("{factor: 0.5, share: 0.1, links: [leaf1-spine1]}", "needs either share or links"),
        ("{factor: 2, share: 0.1}", "slows nothing"),
        ("{factor: 0.5, share: 5}", "use 0.05 for 5 %"),
        ("{factor: 0.5, links: [leaf1-spin1]}", "did you mean 'leaf1-spine1'"),
        ("{factor: 0.5, links: [h1-leaf1]}", "there is no link 'h1-leaf1' between switches"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, slow, says):
    with pytest.raises(InputError) as caught:
        load(tmp_path, slow)
    assert says in str(caught.value)
    assert str(caught.value).count("->") == 1
