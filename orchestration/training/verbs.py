"""`closloop train`: trains a tuner by the protocol, or for a number of episodes.

`closloop distill` makes boosted trees of RL-CC's network.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import ClusterOption, Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError, check_known, not_installed
from orchestration.core.machine import limit_numpy_threads
from orchestration.core.plugins import is_file, short_name
from orchestration.run.launcher import executor_named

if TYPE_CHECKING:
    from orchestration.training.request import TrainRequest
    from orchestration.training.rlcc.distill import Round

# Each is a training of its own.
_MAX_SEEDS = 1_000


@dataclass(frozen=True)
class ByProtocol:
    """Options: a training by the protocol."""

    seeds: Annotated[str, "Training seeds, like 1-5 or 1,3; default: as many as it wants."] = ""
    transport: Annotated[str, "Train under dctcp or dcqcn (with PFC); default: dctcp."] = ""
    held_out: Annotated[str, "With --scenario: the campaign file that stops and chooses."] = ""
    decisions: Annotated[
        int, typer.Option(min=0, help="Another budget of queue decisions, for a try.")
    ] = 0

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value]


@dataclass(frozen=True)
class _Options:
    """What is asked of either kind of training; `request` lacks its scenario and length."""

    request: TrainRequest
    scenario: str
    out: Path | None
    fresh: bool
    cluster: str

    @property
    def name(self) -> str:
        """What the training is called."""
        return short_name(self.request.of_learner)

    def having(self, scenario: str, **values: Any) -> TrainRequest:
        """Return the request with its scenario, and other values of some fields."""
        from orchestration.training.request import find_scenario

        return replace(self.request, scenario=find_scenario(scenario), **values)


@verb()
def train(
    tuner: Annotated[str, "acc, pet, graphcc, drlet or drlet-local; file.py:Learner; or rl-cc."],
    *,
    by: ByProtocol,
    scenario: Annotated[
        str, "A campaign file, or a scenario's name; default: the protocol's."
    ] = "",
    backend: Annotated[str, "--on", "Train on this backend: emulated or fluid."] = "",
    episodes: Annotated[
        int, typer.Option(min=0, help="Play so many episodes in all, without the protocol.")
    ] = 0,
    actors: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Episodes played with the same network. Part of the result."
        ),
    ] = 2,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=0, help="Cores to use; 0: all of them.")
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="With --episodes: decides every draw; default: 1.")
    ] = None,
    init: Annotated[str, "Go on from this checkpoint's network: a name, or a file."] = "",
    per_switch: Annotated[bool, "A network for each switch (acc and pet)."] = False,
    cluster: ClusterOption = "",
    setting: Annotated[list[str], "--set", "A setting of the learner or tuner: NAME=VALUE."] = [],  # noqa: B006
    architecture: Annotated[str, "rl-cc's network: mlp or lstm."] = "",
    out: Annotated[Path | None, "The folder; default: below runs/train."] = None,
    fresh: Annotated[bool, "Throw an earlier training in the folder away."] = False,
    as_json: Json = False,
) -> None:
    """Train a tuner. Given again after Ctrl-C or a crash, it goes on where it was.

    By the protocol (docs/tuners.md): from several seeds side by side, each with the same budget of
    decisions; a held-out scenario decides when to stop and which network is kept, and the table at
    the end says how many seeds ended above the placebo. With --episodes: one plain training.

    Then use it: `{name: TUNER, checkpoint: FOLDER/checkpoint.safetensors}` in a campaign, or a list
    of them. rl-cc is trained in ns-3, an update of its network an episode.

    Examples: closloop train acc --transport dcqcn --seeds 1-10

    closloop train graphcc --on fluid --episodes 20

    closloop train acc --cluster machines.yml
    """
    limit_numpy_threads()

    from orchestration.training.request import (
        TrainRequest,
        acting_tuner,
        learner_class,
        split_settings,
    )

    if find_spec("torch") is None:
        raise not_installed("training", "torch", "learn")
    if tuner == "rl-cc":
        foreign = (scenario, backend, init, per_switch or "", cluster, *setting, *by.given())
        if any(foreign):
            raise InputError.single(
                "rl-cc",
                "takes --architecture, --episodes, --seed, --out and --fresh",
                "leave the rest out",
            )
        _train_rlcc(architecture or "mlp", episodes or 100, _or_1(seed), out, fresh)
        return
    if architecture:
        raise InputError.single("--architecture", f"{tuner} has one network", "leave it out")
    settings, params = split_settings(tuner, dict(_read(text) for text in setting))
    if per_switch and not getattr(learner_class(tuner), "per_switch", False):
        what = f"{tuner} has one network for all switches"
        raise InputError.single("--per-switch", what, "leave it out")
    own = tuner if is_file(tuner) else ""
    request = TrainRequest(
        acting_tuner(tuner),
        *("", backend, episodes, actors, _or_1(seed), init, per_switch, settings, params),
        learner=own,
    )
    if own and not scenario:
        what = "a learner of one's own has no scenario of ours"
        raise InputError.single("--scenario", what, "name a campaign file")
    asked = _Options(request, scenario, out, fresh, cluster)
    if not episodes:
        if seed is not None:
            what = "the protocol trains several seeds"
            raise InputError.single("--seed", what, f"use --seeds {seed}")
        _by_protocol(asked, by, jobs, as_json=as_json)
        return
    if given := by.given():
        raise InputError.single(
            "--episodes", f"a training by episodes takes no {', '.join(given)}", "leave one out"
        )
    _by_episodes(asked, jobs)


def _cores(slots: int, jobs: int) -> int:
    """Return how many episodes are played at once, at most; `jobs` if it says that."""
    return jobs or slots or len(os.sched_getaffinity(0))


def _by_episodes(asked: _Options, jobs: int) -> None:
    """Train once, for a number of episodes."""
    from orchestration.analysis.learning_curve import write_curve
    from orchestration.run import backend_factory
    from orchestration.training.display import Display
    from orchestration.training.request import Episodes
    from orchestration.training.train import train as run

    request = asked.having(asked.scenario or asked.name)
    engine = backend_factory.backend(Episodes(request).backend)
    folder = asked.out or Path("runs/train") / asked.name
    with executor_named(asked.cluster) as place, Display("episode") as display:
        checkpoint = run(
            request,
            engine,
            folder,
            min(request.actors, _cores(place.slots(), jobs)),
            lambda done, total: display.round(asked.name, done, total),
            fresh=asked.fresh,
            place=place,
        )
    page = write_curve(folder / "curve.csv", asked.name)
    typer.echo(f"checkpoint: {checkpoint}\ncurve: {page}")


def _by_protocol(asked: _Options, by: ByProtocol, jobs: int, *, as_json: bool) -> None:
    """Train every seed by the protocol, and print what they came to."""
    from orchestration.analysis.learning_curve import write_curve
    from orchestration.training.display import Display, show_results
    from orchestration.training.outcome import verdict
    from orchestration.training.protocol import load_protocol
    from orchestration.training.request import find_scenario
    from orchestration.training.seeds import Listener, train_seeds

    protocol = load_protocol()
    planned = protocol.training(asked.name, by.transport)
    if bool(asked.scenario) != bool(by.held_out):
        raise InputError.single(
            "--scenario",
            "a training by the protocol needs a scenario and a held-out one",
            "give --scenario and --held-out, or train by --episodes",
        )
    held_out = find_scenario(by.held_out or planned.held_out)
    rule = protocol.rule(asked.name, held_out, by.decisions)
    numbers = _numbers(by.seeds) if by.seeds else list(range(1, protocol.min_seeds + 1))
    name = f"{asked.name}-{planned.transport}"
    scenario = asked.scenario or planned.scenario
    requests = {
        f"{name}-{number}": asked.having(scenario, seed=number, rule=rule) for number in numbers
    }
    folder = asked.out or Path("runs/train") / name
    with executor_named(asked.cluster) as place, Display("decision") as display:
        listener = Listener(display.round, display.note)
        cores = _cores(place.slots(), jobs)
        results = train_seeds(requests, folder, cores, listener, fresh=asked.fresh, place=place)
    for one in requests:
        write_curve(folder / one / "curve.csv", one)
    found = verdict(list(results.values()), protocol.share_above, protocol.min_seeds)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "protocol": protocol.version,
                "networks": {
                    one: {"checkpoint": str(folder / one / "checkpoint.safetensors")}
                    | result.to_json()
                    for one, result in results.items()
                },
                **found.to_json(),
            }
        )
    else:
        show_results(results, found)
        typer.echo(f"networks: {folder}/{name}-*/checkpoint.safetensors, curves: curve.html there")


def _train_rlcc(architecture: str, updates: int, seed: int, out: Path | None, fresh: bool) -> None:
    from orchestration.training.display import Display
    from orchestration.training.rlcc.train import RlccRequest, train
    from tuners.nic.networks import ARCHITECTURES

    check_known("--architecture", "{!r} is none", [architecture], ARCHITECTURES)
    request = RlccRequest(ARCHITECTURES[architecture].kind, seed, updates)
    folder = out or Path("runs/train") / f"rl-cc-{architecture}-{seed}"
    with Display("episode") as display:

        def show(done: int, reward: float, delta: float, inflation: float) -> None:
            text = f"reward {reward:.4f}  delta {delta:+.4f}  inflation {inflation:.2f}"
            display.step("rl-cc", done, updates, text)

        checkpoint = train(
            request,
            folder,
            lambda done, figures: show(done, figures.reward, figures.delta, figures.inflation),
            fresh=fresh,
        )
    typer.echo(f"checkpoint: {checkpoint}\ncurve: {folder / 'curve.csv'}")


def _numbers(text: str) -> list[int]:
    """Return `1-5` or `1,3,7-9` as numbers."""

    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError.single("--seeds", f"{text!r} are no seeds", "like 1-5, or 1,3,7")
        numbers = range(int(first), int(last or first) + 1)
        # not len(numbers), which is for what fits into a C integer
        if len(found) + numbers.stop - numbers.start > _MAX_SEEDS:
            raise InputError.single(
                "--seeds", f"{text!r} are more than {_MAX_SEEDS:,} seeds", "use fewer"
            )
        found |= dict.fromkeys(numbers)
    if not found:
        raise InputError.single("--seeds", f"{text!r} has none", "like 1-5, or 1,3,7")
    return list(found)


def _or_1(seed: int | None) -> int:
    return 1 if seed is None else seed


def _read(text: str) -> tuple[str, Any]:

    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InputError.single("--set", f"{text!r} is no NAME=VALUE", "like learning_rate=0.0003")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


@verb("Example: closloop distill rl-cc-mlp -o model.json && closloop compile model.json")
def distill(
    checkpoint: Annotated[str, "A trained MLP: a .safetensors file, or a pretrained one's name."],
    output: Annotated[Path, "--output", "-o", "The trees, for `closloop compile`."] = Path(
        "model.json"
    ),
    trees: Annotated[int, typer.Option(min=1, help="At most so many.")] = 10,
    depth: Annotated[int, typer.Option(min=1, max=8, help="Levels of each.")] = 4,
    operations: Annotated[int, typer.Option(min=1, help="At most so many a decision.")] = 150,
    rounds: Annotated[
        int, typer.Option(min=1, help="At most so many: from the second on, the trees drive.")
    ] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Decides every draw.")] = 1,
) -> None:
    """Distil RL-CC's network into boosted trees, which a NIC computes.

    The network drives in ns-3, then the trees drive and the network labels, until goodput agrees
    within 1 % and latency within 5 %. Beside the trees: NAME.md, the report, and NAME.svg, loss by
    trees and depth.

    Exit code: 0 they agree, 1 they do not after all rounds.
    """
    from orchestration.core.outputs import check_outputs, write_output
    from orchestration.training.rlcc.distill import Budget, report, teacher_of, trade_picture
    from orchestration.training.rlcc.distill import distill as run

    words, drawn = output.with_suffix(".md"), output.with_suffix(".svg")
    check_outputs([output, words, drawn], [checkpoint])
    teacher = teacher_of(checkpoint)
    output.parent.mkdir(parents=True, exist_ok=True)
    made = run(teacher, Budget(trees, depth, operations), output, rounds, seed, _show)
    write_output(words, report(made, checkpoint))
    write_output(drawn, trade_picture(made.trade))
    typer.echo(f"{output}\n{words}\n{drawn}")
    if not made.rounds[-1].agrees:
        raise typer.Exit(1)


def _show(number: int, done: Round) -> None:
    typer.echo(
        f"round {number}: {done.samples} windows, RMSE {done.rmse:.4f}, "
        f"{100 * done.within:.1f} % of actions within 0.01, "
        + ("the closed loops agree" if done.agrees else "the closed loops differ"),
        err=True,
    )
