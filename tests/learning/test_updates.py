"""Each algorithm's update against a case worked by hand."""

import numpy as np
import pytest
import torch

from inventory.files import load_testbed
from tuners.ecn import graphcc, pet
from tuners.ecn.features import pet_reward, queue_score, queue_utilisation_reward, size_feature
from tuners.ecn.graphcc import HIDDEN, PARTS, Graph, graph, q_values
from tuners.ecn.templates import acc_templates, graphcc_templates
from tuners.learning.networks import mlp
from tuners.learning.q_learning import (
    Explorer,
    ddqn_target,
    exploration,
    held_returns,
    multi_step_returns,
)
from tuners.training import pet as learner_of_pet
from tuners.training.acc import AccLearner, AccSettings


def test_double_q_target_chooses_by_one_network_and_values_by_the_other():
    # the online network prefers action 1, which the target network gives 10, not its best 30
    online = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
    target = torch.tensor([[20.0, 10.0, 30.0], [-2.0, 7.0, 8.0]])
    y = ddqn_target(torch.tensor([0.5, 1.0]), online, target, discount=0.9)
    np.testing.assert_allclose(y.numpy(), [0.5 + 0.9 * 10.0, 1.0 + 0.9 * -2.0], rtol=1e-6)


@pytest.mark.parametrize("relative", [True, False])
def test_what_all_actions_earn_alike_does_not_move_a_relative_learner(relative):
    testbed = load_testbed("rlcc-7")
    settings = AccSettings(weight_decay=0.0, relative=relative)
    learner = AccLearner(1, testbed, settings)
    inputs = learner.parameters()["q.0.weight"].shape[1]
    x = np.ones((1, len(testbed.queues), inputs), dtype=np.float32)
    action = np.zeros(x.shape[:2], dtype=np.int64)
    learner.add({"x": x, "action": action, "reward": action + 0.7, "next_x": x})
    before = learner.parameters()["q.0.weight"]
    learner.update()
    moved = np.abs(learner.parameters()["q.0.weight"] - before).max()
    assert (moved < 1e-6) == relative


def test_advantages_by_hand():
    # delta_0 = 1 + 0.5*4 - 2 = 1; delta_1 = 0 + 0.5*6 - 4 = -1; delta_2 = 2 + 0.5*0 - 6 = -4
    reward = np.array([[1.0], [0.0], [2.0]])
    value = np.array([[2.0], [4.0], [6.0], [0.0]])
    every = np.ones((3, 1), dtype=bool)
    got = learner_of_pet.advantages(reward, value, every, discount=0.5, gae_lambda=0.2)
    # A_2 = -4; A_1 = -1 + 0.1*-4 = -1.4; A_0 = 1 + 0.1*-1.4 = 0.86
    np.testing.assert_allclose(got[:, 0], [0.86, -1.4, -4.0])
    # the action of 0 goes on at 1: delta_0 = (1 + 0.5*0) + 0.25*6 - 2 = 0.5
    lasting = np.array([[True], [False], [True]])
    got = learner_of_pet.advantages(reward, value, lasting, discount=0.5, gae_lambda=0.2)
    # A_0 = 0.5 + 0.25*0.2*-4
    np.testing.assert_allclose(got[:, 0], [0.3, 0.0, -4.0])


def test_rewards_to_go_end_with_the_value_of_the_last_state():
    got = learner_of_pet.rewards_to_go(np.array([[1.0], [2.0]]), np.array([8.0]), discount=0.5)
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
    loss = learner_of_pet.clipped_loss(torch.tensor([ratio]), torch.tensor([advantage]), clip=0.2)
    assert float(loss) == pytest.approx(-objective)


def test_exploration_ends_and_stays():
    shares = [exploration(1.0, 0.05, 4_000.0, n) for n in (0, 4_000, 11_900, 12_000, 50_000)]
    np.testing.assert_allclose(shares, [1.0, np.exp(-1), np.exp(-2.975), 0.05, 0.05])


def test_exploration_of_equation_13():
    settings = learner_of_pet.PetSettings()
    assert learner_of_pet.exploration(settings, 50) == 0.2
    assert learner_of_pet.exploration(settings, 100) == pytest.approx(0.99**2 * 0.2)


def line() -> Graph:
    """Agent 0 sends to 1, 0 and 1 send to 2, nobody sends to 0."""
    neighbours = np.array([[0, 0], [0, 0], [0, 1]])
    present = np.array([[0, 0], [1, 0], [1, 1]], dtype=np.float32)
    return Graph(neighbours, present)


def readable_parameters() -> dict[str, np.ndarray]:
    """m(h_v, h_u) = h_u[0]; u(h, M) = h[0] + 10 min + 100 max; value of the lowest kmin = h[0]."""
    shapes = {
        "message": (2 * HIDDEN, HIDDEN, HIDDEN),
        "update": (3 * HIDDEN, HIDDEN, HIDDEN),
        "readout": (HIDDEN, HIDDEN, sum(PARTS.sizes)),
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
    kmin = graphcc_templates().kmin_bytes
    lowest = kmin == kmin.min()
    np.testing.assert_allclose(values[:, lowest].T, [[1, 222, 11423]] * np.count_nonzero(lowest))
    np.testing.assert_array_equal(values[:, ~lowest], 0)


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
    got = pet_reward(np.array([0.0, 60_000.0]), np.array([0.5, 1.0]), 0.3, 0.7)
    np.testing.assert_allclose(got, [0.3 * 0.5 + 0.7, 0.3 * 1.0 + 0.7 / 4])
    # table I: the difference between PET's mean queue and ACC's is seen
    pets, accs = pet_reward(np.array([5_300.0, 6_100.0]), np.zeros(2), 0.3, 0.7)
    assert pets - accs > 0.015


def test_pet_thresholds_are_in_order_and_apart():
    every = np.array([[low, high, 0] for low in range(10) for high in range(10)])
    action = pet.thresholds(np.arange(100), every)
    assert (action.kmin_bytes < action.kmax_bytes).all()
    # in order and apart already: E(n) as chosen
    one = pet.thresholds(np.array([0]), np.array([[1, 4, 19]]))
    assert (one.kmin_bytes[0], one.kmax_bytes[0], one.pmax[0]) == (40_000, 320_000, 1.0)


def test_drawn_actions_have_the_probability_that_is_said():
    rng = np.random.default_rng(3)
    logits = np.zeros((40_000, sum(pet.HEADS)), dtype=np.float32)
    # each head all but always takes its first
    for first in (0, pet.HEADS[0], pet.HEADS[0] + pet.HEADS[1]):
        logits[:, first] = 30.0
    heads, log_probability = pet.choose(logits, 0.2, rng)
    joint = (heads == 0).all(axis=1)
    # one step for all three: with one in each head it would be 0.8^3, about a half
    assert joint.mean() == pytest.approx(0.8, abs=0.01)
    np.testing.assert_allclose(log_probability[joint], np.log(0.8 + 0.2 / 2000), rtol=1e-5)
    np.testing.assert_allclose(log_probability[~joint], np.log(0.2 / 2000), rtol=1e-5)
    # an exploring action is uniform in every head
    explored = heads[~joint]
    for place, size in enumerate(pet.HEADS):
        share = np.bincount(explored[:, place], minlength=size) / len(explored)
        np.testing.assert_allclose(share, 1 / size, atol=0.02)


def test_an_update_knows_the_probability_of_what_was_drawn():
    """Before the first step of an update the ratio of equation 11 is 1, exploring or not."""
    testbed = load_testbed("rlcc-7")
    learner = learner_of_pet.PetLearner(1, testbed)
    count, rng = len(testbed.queues), np.random.default_rng(1)
    x = rng.random((1, count, 25)).astype(np.float32)
    logits = mlp(learner.parameters(), "actor", x)[0]
    heads, old = pet.choose(logits, 0.2, rng)
    seen = {}

    def keep(ratio, advantage, clip):
        seen["ratio"] = ratio.detach().numpy()
        return (ratio * 0.0).sum()

    rows = {
        "x": torch.from_numpy(x),
        "heads": torch.from_numpy(heads[None]),
        "old": torch.from_numpy(old[None].astype(np.float32)),
        "advantage": torch.zeros(1, count),
        "target": torch.zeros(1, count),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner_of_pet, "clipped_loss", keep)
        learner._minibatch(rows, 0.2)
    np.testing.assert_allclose(seen["ratio"], 1.0, rtol=1e-4)


def test_acc_and_pet_choose_from_the_same_settings():
    table = acc_templates()
    assert (table.kmin_bytes.min(), table.kmax_bytes.max()) == (20_000, 10_240_000)
    assert len(table) == 900  # kmin < kmax among ten thresholds, twenty probabilities
    every = np.array([[a, b, p] for a in range(10) for b in range(10) for p in range(20)])
    chosen = pet.thresholds(np.arange(2000), every)
    inside = chosen.kmax_bytes <= 10_240_000
    pets = {
        *zip(chosen.kmin_bytes[inside], chosen.kmax_bytes[inside], chosen.pmax[inside], strict=True)
    }
    assert pets == {*zip(table.kmin_bytes, table.kmax_bytes, table.pmax, strict=True)}


@pytest.mark.parametrize(
    ("table", "widths", "place", "setting", "value"),
    [
        # kmin 20 KB is output 0, kmax 80 KB the second of kmax, 15 % the third of pmax
        (acc_templates(), (9, 9, 20), 20 + 2, (20_000, 80_000, 0.15), 0 + 10 + 20),
        (graphcc_templates(), (5, 5, 5), 9, (2_000, 32_000, 1.0), 0 + 6 + 14),
    ],
)
def test_a_setting_is_worth_its_kmin_its_kmax_and_its_pmax(table, widths, place, setting, value):
    parts = table.parts()
    assert parts.sizes == widths
    outputs = np.arange(float(sum(widths)))[None]
    values = parts.sums(outputs)
    assert values.shape == (1, len(table))
    assert tuple(column[place] for column in vars(table).values()) == setting
    assert values[0, place] == value
    np.testing.assert_array_equal(parts.sums(torch.from_numpy(outputs)).numpy(), values)


def test_a_transition_lasts_as_long_as_its_action():
    # one agent changes its action after two decisions, the other never does
    action = np.array([[5, 7], [5, 7], [6, 7], [6, 7]])
    reward = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
    x = np.arange(8.0).reshape(4, 2, 1)
    rows = {"x": x, "action": action, "reward": reward, "next_x": x + 2.0}
    got = held_returns(rows, discount=0.5, horizon=3)
    np.testing.assert_allclose(got["reward"], [[2.0, 2.75], [2.0, 4.5], [5.0, 5.0], [4.0, 4.0]])
    np.testing.assert_allclose(
        got["weight"], [[0.25, 0.125], [0.5, 0.125], [0.25, 0.25], [0.5, 0.5]]
    )
    # the state in which the action ended: after decision 1, 3 and so on
    np.testing.assert_array_equal(got["next_x"][..., 0], [[4, 7], [4, 9], [8, 9], [8, 9]])
    one = held_returns(rows, discount=0.5, horizon=1)
    np.testing.assert_array_equal(one["reward"], reward)
    np.testing.assert_array_equal(one["next_x"], rows["next_x"])
    assert (one["weight"] == 0.5).all()


def test_a_target_of_several_decisions_sums_their_rewards():
    x = np.arange(4.0).reshape(4, 1, 1)
    rows = {
        "x": x,
        "action": np.array([[0], [1], [2], [3]]),
        "reward": np.array([[1.0], [2.0], [3.0], [4.0]]),
        "next_x": x + 1.0,
    }
    got = multi_step_returns(rows, discount=0.5, horizon=3)
    np.testing.assert_allclose(got["reward"][:, 0], [1 + 1 + 0.75, 2 + 1.5 + 1])
    np.testing.assert_array_equal(got["next_x"][:, 0, 0], [3.0, 4.0])
    np.testing.assert_array_equal(got["action"][:, 0], [0, 1])
    assert len(multi_step_returns(rows, 0.5, 5)["x"]) == 0  # the episode is too short


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_explored_actions_last_and_have_the_share_that_is_asked_for(share):
    explorer = Explorer(np.random.default_rng(1), agents=200, hold=8.0)
    everyone, greedy = np.arange(200), 0
    values = np.zeros((200, 50))
    values[:, greedy] = 1.0
    before = np.full(200, greedy)
    rows = []
    for _ in range(600):
        choice = np.full(200, greedy)
        explorer.apply(choice, before, everyone, share, values)
        rows.append(choice)
        before = choice
    exploring = np.stack(rows[100:]) != greedy
    # a few explore the best action itself, by its rank the likeliest of fifty
    best = 1.0 / np.sum(1.0 / np.arange(1, 51))
    assert exploring.mean() == pytest.approx(share * (1 - best), rel=0.1)
    kept = (np.stack(rows[101:]) == np.stack(rows[100:-1]))[exploring[:-1]]
    assert kept.mean() == pytest.approx(1 - 1 / 8, abs=0.04)  # or it draws the same again


def test_values_are_of_what_an_action_earns_beyond_the_mean():
    learner = AccLearner(1, load_testbed("rlcc-7"), AccSettings(discount=0.5))
    learner._count_rewards(np.array([0.2, 0.6]))
    weight = torch.tensor([0.5, 0.25])  # of one decision, and of two
    got = learner._centred(torch.tensor([0.4, 0.4 + 0.5 * 0.6]), weight, 0.5)
    np.testing.assert_allclose(got.numpy(), [0.0, 0.5 * 0.2], atol=1e-7)


def test_graphcc_starts_with_values_that_depend_on_the_state():
    fabric = graph(load_testbed("rlcc-7"))
    rows = np.random.default_rng(1).random((64, len(fabric.neighbours), 10)).astype(np.float32)
    values = q_values(graphcc.initial_parameters(1), rows, fabric, fabric.present[..., None])
    # with all modules' outputs made small, not only the values, it was 0.0001
    assert 0.005 < values.std(axis=0).mean() < 0.5


def test_an_idle_queue_is_not_learned_from():
    testbed = load_testbed("rlcc-7")
    learner = AccLearner(1, testbed)
    count = len(testbed.queues)
    x = np.zeros((3, count, 19), dtype=np.float32)
    x[..., 3] = size_feature(np.array(20_000.0))  # kmin
    x[:, 0, 1] = size_feature(np.array(50_000.0))  # one queue exceeds it
    x[:, 1, 1] = size_feature(np.array(19_000.0))  # another is at work, below
    rows = {"x": x, "next_x": x, "reward": np.ones((3, count)), "action": np.zeros((3, count))}
    learner.add(rows)
    held = [memory for memory in learner._local if len(memory)]
    assert [len(memory) for memory in held] == [3]
    assert not held[0].field("idle").any()
    # all queues idle: there is nothing to learn, and that is no error
    nothing = AccLearner(1, testbed)
    nothing.add({**rows, "x": np.zeros_like(x)})
    assert nothing.update() == 0.0
    # a network for use without the idle rule learns wherever a port is at work
    every = AccLearner(1, testbed, AccSettings(idle_rule=False))
    every.add(rows)
    held = [memory for memory in every._local if len(memory)]
    assert [len(memory) for memory in held] == [6]
    assert not held[0].field("idle").any()
