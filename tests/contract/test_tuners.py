"""Every tuner of the registry, on fabrics of several shapes and rates; and tuners that break it."""

import pytest

from inventory.files import load_testbed
from orchestration.core.topology import Device, LinkSpec, Testbed
from tuners import registry
from tuners.contract import check_tuner
from tuners.learning import checkpoint
from tuners.training.drlet import DrletLearner
from tuners.training.drlet_local import DrletLocalLearner

# What a tuner needs that has no default; one entry a parameterised tuner.
PARAMS = {
    "static": {"kmin_bytes": 30_000, "kmax_bytes": 90_000},
    "best-timeout": {"load": 0.6},
    "timeout": {"timeout_ns": 400_000},
    "step": {
        "at_ns": 400_000,
        "kmin_bytes": 30_000,
        "kmax_bytes": 90_000,
        "then_kmin_bytes": 5_000,
        "then_kmax_bytes": 200_000,
    },
}
# Their checkpoints are for one shape of fabric.
LEARNERS_OF_TIMEOUTS = {"drlet": DrletLearner, "drlet-local": DrletLocalLearner}


def mixed_rates() -> Testbed:
    devices = [Device(f"h{n}", "host", 0) for n in range(4)] + [Device("s1", "switch", 1)]
    rates = (10, 25, 100, 400)
    links = [LinkSpec(f"h{n}", "s1", rate * 10**9, 1000) for n, rate in enumerate(rates)]
    return Testbed.build("mixed", devices, links, mtu_bytes=1500, buffer_bytes=4_000_000)


@pytest.fixture(params=["graphcc", "acc", "drlet-k4", "rlcc-7", "mixed"])
def testbed(request) -> Testbed:
    return mixed_rates() if request.param == "mixed" else load_testbed(request.param)


def recording(testbed: Testbed, folder) -> str:
    """Write actions on every queue at the start, and on some of them twice later on."""
    rows = ["t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax"]
    for t_ns, queues, kmin in (
        (0, testbed.queues, 10_000),
        (200_000, testbed.queues[:3], 20_000),
        (500_000, testbed.queues[::2], 30_000),
    ):
        rows += [f"{t_ns},{q.device},{q.name},{q.klass},{kmin},{3 * kmin},0.1" for q in queues]
    path = folder / "actions.csv"
    path.write_text("\n".join([*rows, ""]), encoding="utf-8")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.names())
def test_a_tuner_holds_to_the_contract(name, testbed, tmp_path):
    params = PARAMS.get(name, {})
    if name == registry.RECORDED:
        params = {"actions": recording(testbed, tmp_path)}
    if name == registry.INTERVENTION:
        params = {"actions": recording(testbed, tmp_path), "tuner": "graphcc"}
    if name in LEARNERS_OF_TIMEOUTS:
        balanced = testbed.name in ("graphcc", "acc", "drlet-k4")
        learner = LEARNERS_OF_TIMEOUTS[name](1, testbed if balanced else load_testbed("drlet-k4"))
        path = tmp_path / "untrained.safetensors"
        card = {"tuner": name, "architecture": learner.architecture()}
        checkpoint.save(path, learner.parameters(), card)
        params = {"checkpoint": str(path), "explore": 0.2}
        if not balanced:
            assert "one path" in "".join(check_tuner(name, testbed, params))
            return
    assert check_tuner(name, testbed, params) == []


SOUND = """
from dataclasses import dataclass

import numpy as np

from closloop import ECN, BaseTuner, Setup


@dataclass
class Mine(BaseTuner):
    kmax_bytes: int = 50_000

    def reset(self, testbed, seed):
        self.rng = np.random.default_rng(seed)
        self.queues = np.arange(len(testbed.queues))
        return Setup((ECN.change(self.queues, 1_000, self.kmax_bytes, 0.5),))

    def act(self, observation):
        busy = np.flatnonzero(observation["qlen_bytes"] > 10_000)
        share = self.rng.random(len(busy))
        return (ECN.change(busy, 1_000, 20_000, share),)
"""

ANEW = "self.rng = np.random.default_rng(seed)"
KEPT = 'self.rng = getattr(self, "rng", None) or np.random.default_rng(seed)'


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("", ""), None),
        (('["qlen_bytes"]', '["dropped_packets"]'), "looks for 'dropped_packets'"),
        (("self.kmax_bytes, 0.5", "self.kmax_bytes, 1.5"), "pmax 1.5 is not in 0..1"),
        (("20_000, share", "500, share"), "needs 0 <= kmin <= kmax"),
        (("np.random.default_rng(seed)", "np.random.default_rng()"), "same seed"),
        (("ECN.change(self.queues, 1_000", "ECN.change(self.queues[1:], 1_000"), "39 of 40"),
        (("Mine(BaseTuner):", 'Mine(BaseTuner):\n    observes = ("qlen",)'), "not declared"),
        (("Mine(BaseTuner):", "Mine(BaseTuner):\n    knobs = ()"), "name it in `knobs`"),
        (("return Setup((", "return tuple(("), "not a Setup"),
        (("kmax_bytes: int = 50_000", "kmax_bytes: int"), "needs 'kmax_bytes'"),
        ((ANEW, KEPT), "remembers"),
        (("class Mine", "class Other"), "has no 'Mine': it has"),
        (("import numpy", "import numpi"), "cannot be imported"),
    ],
)
def test_what_breaks_the_contract_is_named(change, said, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOUND.replace(*change) if change[0] else SOUND, encoding="utf-8")
    faults = check_tuner(f"{path}:Mine", load_testbed("graphcc"))
    assert not faults if said is None else said in "; ".join(faults)
