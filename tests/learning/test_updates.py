"""Each algorithm's update against a case worked by hand."""

import numpy as np
import pytest
import torch

from inventory.files import load_testbed
from tuners.ecn import pet
from tuners.ecn.graph import Graph, graph
from tuners.ecn.graphcc import HIDDEN, q_values
from tuners.ecn.rewards import pet_reward, queue_score, queue_utilisation_reward
from tuners.q_learning import ddqn_target


def test_double_q_target_chooses_by_one_network_and_values_by_the_other():
    # the online network prefers action 1, which the target network gives 10, not its best 30
    online = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
    target = torch.tensor([[20.0, 10.0, 30.0], [-2.0, 7.0, 8.0]])
    y = ddqn_target(torch.tensor([0.5, 1.0]), online, target, discount=0.9)
    np.testing.assert_allclose(y.numpy(), [0.5 + 0.9 * 10.0, 1.0 + 0.9 * -2.0], rtol=1e-6)


def test_advantages_by_hand():
    # delta_0 = 1 + 0.5*4 - 2 = 1; delta_1 = 0 + 0.5*6 - 4 = -1; delta_2 = 2 + 0.5*0 - 6 = -4
    reward = np.array([[1.0], [0.0], [2.0]])
    value = np.array([[2.0], [4.0], [6.0], [0.0]])
    got = pet.advantages(reward, value, discount=0.5, gae_lambda=0.2)
    # A_2 = -4; A_1 = -1 + 0.1*-4 = -1.4; A_0 = 1 + 0.1*-1.4 = 0.86
    np.testing.assert_allclose(got[:, 0], [0.86, -1.4, -4.0])


def test_rewards_to_go_end_with_the_value_of_the_last_state():
    got = pet.rewards_to_go(np.array([[1.0], [2.0]]), np.array([8.0]), discount=0.5)
    np.testing.assert_allclose(got[:, 0], [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8])


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        (1.5, 2.0, 1.2 * 2.0),  # clipped above: no gain from going further
        (0.5, 2.0, 0.5 * 2.0),  # below, and worse: the ratio itself counts
        (1.5, -2.0, 1.5 * -2.0),
        (0.5, -2.0, 0.8 * -2.0),
        (1.1, 3.0, 1.1 * 3.0),
    ],
)
def test_clipped_loss(ratio, advantage, objective):
    loss = pet.clipped_loss(torch.tensor([ratio]), torch.tensor([advantage]), clip=0.2)
    assert float(loss) == pytest.approx(-objective)


def test_exploration_of_equation_13():
    settings = pet.PetSettings()
    assert pet.exploration(settings, 50) == 0.2
    assert pet.exploration(settings, 100) == pytest.approx(0.99**2 * 0.2)


def line() -> Graph:
    """Agent 0 sends to 1, 0 and 1 send to 2, nobody sends to 0."""
    neighbours = np.array([[0, 0], [0, 0], [0, 1]])
    present = np.array([[0, 0], [1, 0], [1, 1]], dtype=np.float32)
    return Graph(neighbours, present)


def readable_parameters() -> dict[str, np.ndarray]:
    """m(h_v, h_u) = h_u[0]; u(h, M) = h[0] + 10 min + 100 max; value of action 0 = h[0]."""
    shapes = {
        "message": (2 * HIDDEN, HIDDEN, HIDDEN),
        "update": (3 * HIDDEN, HIDDEN, HIDDEN),
        "readout": (HIDDEN, HIDDEN, 3),
    }
    result = {}
    for name, widths in shapes.items():
        for layer, (inputs, outputs) in enumerate([widths[:2], widths[1:]]):
            result[f"{name}.{layer}.weight"] = np.zeros((inputs, outputs), dtype=np.float32)
            result[f"{name}.{layer}.bias"] = np.zeros((1, outputs), dtype=np.float32)
    result["message.0.weight"][HIDDEN, 0] = 1
    result["message.1.weight"][0, 0] = 1
    for place, (row, factor) in enumerate([(0, 1), (HIDDEN, 10), (2 * HIDDEN, 100)]):
        result["update.0.weight"][row, place] = 1
        result["update.1.weight"][place, 0] = factor
    result["readout.0.weight"][0, 0] = result["readout.1.weight"][0, 0] = 1
    return result


def test_two_rounds_of_messages_by_hand():
    fabric = line()
    x = np.array([[1.0], [2.0], [3.0]], dtype=np.float32)
    values = q_values(readable_parameters(), x, fabric, fabric.present[..., None])
    # round 1: 0 hears nothing: 1; 1 hears 1: 2 + 10 + 100 = 112; 2 hears 1 and 2: 3 + 10 + 200
    # round 2: 1; 112 + 10 + 100 = 222; 213 + 10*1 + 100*112 = 11423
    np.testing.assert_allclose(values[:, 0], [1, 222, 11423])
    np.testing.assert_array_equal(values[:, 1:], 0)


def test_numpy_and_torch_agree():
    fabric = graph(load_testbed("graphcc"))
    rng = np.random.default_rng(0)
    parameters = {
        name: rng.normal(0, 0.3, values.shape).astype(np.float32)
        for name, values in readable_parameters().items()
    }
    x = rng.random((5, len(fabric.neighbours), 9)).astype(np.float32)
    mine = q_values(parameters, x, fabric, fabric.present[..., None])
    tensors = {name: torch.from_numpy(values) for name, values in parameters.items()}
    present = torch.from_numpy(fabric.present[..., None])
    theirs = q_values(tensors, torch.from_numpy(x), fabric, present).numpy()
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_graph_of_a_leaf_spine_fabric():
    testbed = load_testbed("graphcc")
    fabric = graph(testbed)
    for agent, queue in enumerate(testbed.queues):
        heard = fabric.neighbours[agent][fabric.present[agent] > 0]
        assert {testbed.peer_device(testbed.queues[other]).name for other in heard} == {
            queue.device
        }
        # a leaf hears both spines, a spine all four leaves; hosts' NICs are no agents
        assert len(heard) == (2 if queue.device.startswith("leaf") else 4)


def test_rewards_by_hand():
    # 1 KB and less: 1; 1 to 2 KB: 0.9; 512 KB: 0.1; more: 0
    lengths = np.array([0.0, 1_000.0, 1_001.0, 2_000.0, 512_000.0, 512_001.0, 9e9])
    np.testing.assert_allclose(queue_score(lengths), [1, 1, 0.9, 0.9, 0.1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(
        queue_utilisation_reward(np.array([2_000.0]), np.array([0.5])), 0.7 * 0.9 + 0.3 * 0.5
    )
    got = pet_reward(np.array([0.0, 80_000.0]), np.array([0.5, 1.0]), 0.3, 0.7)
    np.testing.assert_allclose(got, [0.3 * 0.5 + 0.7, 0.3 * 1.0 + 0.7 / 4])


def test_pet_thresholds_are_in_order_and_apart():
    every = np.array([[low, high, 0] for low in range(10) for high in range(10)])
    action = pet.thresholds(np.arange(100), every)
    assert (action.kmin_bytes < action.kmax_bytes).all()
    # in order and apart already: E(n) as chosen
    one = pet.thresholds(np.array([0]), np.array([[1, 4, 19]]))
    assert (one.kmin_bytes[0], one.kmax_bytes[0], one.pmax[0]) == (40_000, 320_000, 1.0)


def test_drawn_actions_have_the_probability_that_is_said():
    rng = np.random.default_rng(3)
    logits = np.zeros((20_000, sum(pet.HEADS)), dtype=np.float32)
    logits[:, 2] = 2.0  # the first head prefers 2
    heads, log_probability = pet.choose(logits, 0.1, rng)
    share = np.bincount(heads[:, 0], minlength=10) / len(heads)
    weight = np.exp(2.0) / (np.exp(2.0) + 9)
    assert share[2] == pytest.approx(0.9 * weight + 0.01, abs=0.015)
    picked = heads[:, 0] == 2
    expected = np.log((0.9 * weight + 0.01) / 10 / 20)
    np.testing.assert_allclose(log_probability[picked], expected, rtol=1e-5)
