"""`load_balancing` in a campaign file: what is read, what is refused, and the stream of draws."""

from dataclasses import replace

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.backends.common.linux import host_sysctls
from orchestration.backends.hardware.switch_programs import check_platforms
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.load_balancing import (
    ECMP,
    LoadBalancingSpec,
    initial_random_state,
    splitmix64,
)
from orchestration.core.trial import TrialSpec
from orchestration.replay.campaign_file import _load_balancing
from orchestration.run.checked import check_fit

CAMPAIGN = """
campaign: own
testbed: {testbed}
backend: {backend}
duration: 1ms
traffic:
  - {{kind: flow, src: h1, dst: h2, size: 1MB, start: 0ms}}
tuners: [{tuner}]
{more}
"""


@pytest.mark.parametrize("name", ["letflow", "conga"])
def test_the_papers_names_are_settings_of_flowlets(tmp_path, name):
    route = {"letflow": "random", "conga": "conga"}[name]
    plain = trial_of(tmp_path, f"load_balancing: {{kind: flowlets, route_by: {route}}}")
    assert trial_of(tmp_path, f"load_balancing: {name}") == plain
    tuned = trial_of(tmp_path, f"load_balancing: {{kind: {name}, timeout: 1ms}}").load_balancing
    assert (tuned.route_by, tuned.edge_timeout_ns) == (route, 1_000_000)


def trial_of(tmp_path, more, testbed="graphcc", backend="emulated", tuner="secn1"):
    path = tmp_path / "campaign.yml"
    path.write_text(
        CAMPAIGN.format(testbed=testbed, more=more, backend=backend, tuner=tuner), encoding="utf-8"
    )
    (trial,) = load_campaign(path, repeats=1).trials
    return trial


def refused(tmp_path, more, **words):
    with pytest.raises(InputError) as caught:
        trial_of(tmp_path, more, **words)
    return str(caught.value)


def test_a_field_makes_another_trial_and_its_default_none(tmp_path):
    plain, said = trial_of(tmp_path, ""), trial_of(tmp_path, "load_balancing: ecmp")
    assert "load_balancing" not in plain.to_json()
    assert plain.id == said.id
    roles = "{kind: flowlets, timeout: {edge: 100us, aggregation: 2ms}, route_by: conga}"
    trial = trial_of(tmp_path, f"load_balancing: {roles}")
    wanted = LoadBalancingSpec("flowlets", 100_000, 2_000_000, "conga")
    assert trial.load_balancing == wanted
    assert [wanted.timeout_ns(tier) for tier in (1, 2)] == [100_000, 2_000_000]
    assert trial.id != plain.id
    assert TrialSpec.from_json(trial.to_json()) == trial
    # as a replay writes it
    for spec in (wanted, LoadBalancingSpec("flowlets"), LoadBalancingSpec("spray")):
        again = trial_of(tmp_path, f"load_balancing: {_load_balancing(spec)}".replace("'", '"'))
        assert again.load_balancing == spec
    spray = trial_of(tmp_path, "load_balancing: spray").load_balancing
    assert (spray.kind, spray.timeout_ns(1), ECMP.kind) == ("spray", 0, "ecmp")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "load_balancing: {kind: flowlets, timeout: 999ns}",
            "999ns is out of range\n  -> use 1us to 1s",
        ),
        ("load_balancing: {kind: flowlets, timeout: 1001ms}", "1.001s is out of range"),
        ("load_balancing: {kind: flowlets, timeout: {edge: 1ms}}", "aggregation"),
        ("load_balancing: {kind: flowlets, route_by: drils}", "did you mean 'drill'"),
        ("load_balancing: flowlet", "did you mean 'flowlets'"),
        ("load_balancing: {kind: flowlets, entries: 1000}", "use a power of two"),
        ("load_balancing: {kind: spray, timeout: 1ms}", "spray has no 'timeout'"),
        ("load_balancing: {kind: flowlets, dre_time: 1ms}", "only CONGA uses 'dre_time'"),
        ("load_balancing: spray\nfabric: linux", "`fabric: linux` has no load balancing by spray"),
    ],
)
def test_what_cannot_be_is_refused_once(tmp_path, more, says):
    text = refused(tmp_path, more)
    assert says in text
    assert text.count("->") == 1


def test_a_backend_or_testbed_without_a_choice_is_refused_by_name(tmp_path):
    asked = "load_balancing: flowlets"
    assert "the fluid backend has no load balancing" in refused(tmp_path, asked, backend="fluid")
    star = tmp_path / "star.yml"
    star.write_text(
        "{kind: single-switch, name: star, mtu: 1500B, buffer: 1MB, hosts: 4,\n"
        " host_link: {rate: 1Gbps, delay: 1us}}\n"
    )
    text = refused(tmp_path, asked, testbed="star.yml")
    assert "testbed star has one path between any two hosts" in text


def test_linux_switches_of_a_rack_see_no_queues_of_other_ports(tmp_path):
    for route_by in ("drill", "conga"):
        asked = f"load_balancing: {{kind: flowlets, route_by: {route_by}}}"
        text = refused(tmp_path, asked, backend="hardware")
        assert f"the hardware backend has no load balancing by {route_by}" in text
        assert text.count("->") == 1
    for asked in ("spray", "{kind: flowlets, timeout: 50us, route_by: round-robin}"):
        trial_of(tmp_path, f"load_balancing: {asked}", backend="hardware")


def test_a_tuner_of_timeouts_needs_flowlets(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from tuners.base import BaseTuner\n"
        "class Mine(BaseTuner):\n"
        "    knobs = ('ecn', 'flowlet_timeout')\n"
        "    observes = ('switch.reroutes',)\n"
        "    def reset(self, testbed, seed): ...\n"
    )
    trial = trial_of(tmp_path, "load_balancing: ecmp", tuner="mine.py:Mine")
    testbeds = {"graphcc": load_testbed("graphcc")}
    with pytest.raises(InputError) as caught:
        check_fit([trial], testbeds)
    assert "sets the timeouts of flowlets, and the load balancing is ecmp" in str(caught.value)
    assert "observes 'switch.reroutes'" in str(caught.value)
    for name in ("emulated", "hardware"):
        fits = trial_of(tmp_path, "load_balancing: flowlets", backend=name, tuner="mine.py:Mine")
        check_fit([fits], testbeds)


def test_streams_are_those_of_the_docs():
    # the first outputs of SplitMix64 from state 0, as its reference implementation gives them
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    state, golden = 0, 0x9E3779B97F4A7C15
    for wanted in first:
        assert splitmix64(state) == wanted
        state += golden
    assert initial_random_state(0, 0) == splitmix64(first[0])
    assert initial_random_state(7, 3) == splitmix64(splitmix64(7) + 3)
    assert (
        len({initial_random_state(seed, switch) for seed in range(20) for switch in range(20)})
        == 400
    )


def test_loss_detection_is_a_setting_of_linux_tcp(tmp_path):
    asked = "host: {loss_detection: duplicate-acks}"
    trial = trial_of(tmp_path, asked)
    assert TrialSpec.from_json(trial.to_json()) == trial
    assert host_sysctls(trial.host)["net/ipv4/tcp_sack"] == "0"
    plain = trial_of(tmp_path, "")
    assert "loss_detection" not in plain.to_json()["host"]
    assert "net/ipv4/tcp_sack" not in host_sysctls(plain.host)
    assert "its TCP has one of its own" in refused(tmp_path, asked, backend="simulated")
    roce = "host: {loss_detection: duplicate-acks, congestion_control: dcqcn}"
    assert "no flow is TCP" in refused(tmp_path, roce)


@pytest.mark.parametrize("kind", ["flowlets", "spray"])
def test_sonic_switches_with_a_choice_are_refused_by_name(tmp_path, kind):
    """No release of SONiC chooses other than by the flow; spines have no choice."""
    testbed = load_testbed("graphcc")

    def rack(platform):
        accesses = {name: Access(name, "10.0.0.1", platform=platform) for name in testbed.device}
        for name, ports in testbed.ports_of.items():
            names = tuple(f"eth{place}" for place in range(len(ports)))
            accesses[name] = replace(accesses[name], interfaces=names)
        return Rack("lab", testbed, accesses)

    trial = trial_of(tmp_path, f"load_balancing: {kind}", backend="hardware")
    plain = trial_of(tmp_path, "", backend="hardware")
    check_platforms(rack("linux"), [plain, trial])
    check_platforms(rack("sonic"), [plain])
    with pytest.raises(NotReadyError, match=f"load balancing by {kind}") as caught:
        check_platforms(rack("sonic"), [plain, trial])
    assert "leaf1: runs SONiC" in str(caught.value)
    assert "spine" not in str(caught.value)
