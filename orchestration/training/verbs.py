"""The verbs `closloop train` and `closloop distill`.

`train` trains a tuner by the protocol, or for a number of episodes. `distill` turns RL-CC's network
into boosted trees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.cli.options import ClusterOption, In, Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError, check_known, not_installed
from orchestration.core.machine import limit_numpy_threads
from orchestration.core.plugins import is_file, short_name
from orchestration.run.launcher import executor_named

if TYPE_CHECKING:
    from orchestration.training.request import TrainRequest
    from orchestration.training.rlcc.distill import Round

# Each seed is a training of its own.
_MAX_SEEDS = 1_000


@dataclass(frozen=True)
class ByProtocol:
    """The options of a training by the protocol."""

    seeds: Annotated[
        str, "Training seeds, like 1-5 or 1,3; default: as many as the protocol asks for."
    ] = ""
    transport: Annotated[str, "Train under dctcp or dcqcn (with PFC); default: dctcp."] = ""
    held_out: Annotated[
        str, "With --scenario: the campaign file of the held-out trials, which choose the network."
    ] = ""
    decisions: Annotated[
        int, typer.Option(min=0, help="Another budget of queue decisions, for a trial run.")
    ] = 0

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value]


@dataclass(frozen=True)
class _Options:
    """Options of both kinds of training. `request` has no scenario and no length yet."""

    request: TrainRequest
    scenario: str
    out: Path | None
    fresh: bool
    cluster: str

    @property
    def name(self) -> str:
        """The name of the training: that of its learner."""
        return short_name(self.request.learner_reference)

    def complete_request(self, scenario: str, **values: Any) -> TrainRequest:
        """Return the request with its scenario and with these values of other fields."""
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
        int, typer.Option(min=0, help="Train for so many episodes, without the protocol.")
    ] = 0,
    actors: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Episodes played with the same network. Changes the result."
        ),
    ] = 2,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=0, help="Cores to use; 0: all of them.")
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="With --episodes: the seed of all random draws; default: 1."),
    ] = None,
    init: Annotated[str, "Begin with the network of this checkpoint: a name, or a file."] = "",
    per_switch: Annotated[bool, "Train a network for each switch (acc and pet)."] = False,
    cluster: ClusterOption = "",
    engine: In = "",
    setting: Annotated[list[str], "--set", "A setting of the learner or tuner: NAME=VALUE."] = [],  # noqa: B006
    architecture: Annotated[str, "rl-cc's network: mlp or lstm."] = "",
    out: Annotated[Path | None, "The folder; default: below runs/train."] = None,
    fresh: Annotated[bool, "Remove an earlier training in the folder."] = False,
    as_json: Json = False,
) -> None:
    """Train a tuner. Given again after Ctrl-C or a crash, it goes on where it was.

    By default it follows the protocol (docs/tuners.md): it trains from several seeds side by side,
    each with the same budget of decisions. A held-out scenario decides when to stop and which
    network is kept. The table at the end says how many seeds are better than the placebo. With
    --episodes, it trains once, for so many episodes.

    To use the network, write `{name: TUNER, checkpoint: FOLDER/checkpoint.safetensors}` in a
    campaign; `checkpoint` can also be a list. rl-cc is trained in ns-3, with one update of its
    network per episode.

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
        not_accepted = (
            scenario,
            backend,
            init,
            per_switch or "",
            cluster,
            engine,
            *setting,
            *by.given(),
        )
        if any(not_accepted):
            raise InputError.single(
                "rl-cc",
                "takes --architecture, --episodes, --seed, --out and --fresh only",
                "leave out the other options",
            )
        _train_rlcc(architecture or "mlp", episodes or 100, 1 if seed is None else seed, out, fresh)
        return
    if architecture:
        raise InputError.single("--architecture", f"{tuner} has one network", "leave it out")
    settings, params = split_settings(tuner, dict(_parse_setting(text) for text in setting))
    if per_switch and not getattr(learner_class(tuner), "per_switch", False):
        what = f"{tuner} has one network for all switches"
        raise InputError.single("--per-switch", what, "leave it out")
    own_learner = tuner if is_file(tuner) else ""
    request = TrainRequest(
        acting_tuner(tuner),
        scenario="",
        backend=backend,
        episodes=episodes,
        actors=actors,
        seed=1 if seed is None else seed,
        init=init,
        per_switch=per_switch,
        settings=settings,
        params=params,
        learner=own_learner,
        engine=engine,
    )
    if own_learner and not scenario:
        what = "the protocol has no scenario for a learner of your own"
        raise InputError.single("--scenario", what, "name a campaign file")
    options = _Options(request, scenario, out, fresh, cluster)
    if not episodes:
        if seed is not None:
            what = "the protocol trains several seeds"
            raise InputError.single("--seed", what, f"use --seeds {seed}")
        _by_protocol(options, by, jobs, as_json=as_json)
        return
    if given := by.given():
        raise InputError.single(
            "--episodes", f"cannot be used with {', '.join(given)}", "leave out one or the other"
        )
    _by_episodes(options, jobs)


def _cores(slots: int, jobs: int) -> int:
    """Return how many episodes to play at once: `jobs`, else the executor's slots or cores."""
    return jobs or slots or len(os.sched_getaffinity(0))


def _by_episodes(options: _Options, jobs: int) -> None:
    """Train once, for a number of episodes."""
    from orchestration.analysis.learning_curve import write_curve
    from orchestration.training.display import Display
    from orchestration.training.evaluation import backend_for
    from orchestration.training.train import train as run

    request = options.complete_request(options.scenario or options.name)
    folder = options.out or Path("runs/train") / options.name
    with executor_named(options.cluster) as executor, Display("episode") as display:
        checkpoint = run(
            request,
            backend_for(request),
            folder,
            min(request.actors, _cores(executor.slots(), jobs)),
            lambda done, total: display.round(options.name, done, total),
            fresh=options.fresh,
            executor=executor,
        )
    page = write_curve(folder / "curve.csv", options.name)
    typer.echo(f"checkpoint: {checkpoint}\ncurve: {page}")


def _by_protocol(options: _Options, by: ByProtocol, jobs: int, *, as_json: bool) -> None:
    """Train every seed by the protocol, and print the results."""
    from orchestration.analysis.learning_curve import write_curve
    from orchestration.training.display import Display, show_results
    from orchestration.training.outcome import verdict
    from orchestration.training.protocol import load_protocol
    from orchestration.training.request import find_scenario
    from orchestration.training.seeds import Listener, train_seeds

    protocol = load_protocol()
    planned = protocol.training(options.name, by.transport)
    if bool(options.scenario) != bool(by.held_out):
        raise InputError.single(
            "--scenario",
            "a training by the protocol needs a scenario and a held-out one",
            "give --scenario and --held-out, or train by --episodes",
        )
    held_out = find_scenario(by.held_out or planned.held_out)
    rule = protocol.rule(options.name, held_out, by.decisions)
    numbers = _seed_numbers(by.seeds) if by.seeds else list(range(1, protocol.min_seeds + 1))
    name = f"{options.name}-{planned.transport}"
    scenario = options.scenario or planned.scenario
    requests = {
        f"{name}-{number}": options.complete_request(scenario, seed=number, rule=rule)
        for number in numbers
    }
    folder = options.out or Path("runs/train") / name
    with executor_named(options.cluster) as executor, Display("decision") as display:
        listener = Listener(display.round, display.note)
        cores = _cores(executor.slots(), jobs)
        results = train_seeds(
            requests, folder, cores, listener, fresh=options.fresh, executor=executor
        )
    for training in requests:
        write_curve(folder / training / "curve.csv", training)
    of_all = verdict(list(results.values()), protocol.share_above, protocol.min_seeds)
    if as_json:
        networks = {
            training: {"checkpoint": str(folder / training / "checkpoint.safetensors")}
            | result.to_json()
            for training, result in results.items()
        }
        about = {"folder": str(folder), "protocol": protocol.version, "networks": networks}
        print_json({**about, **of_all.to_json()})
    else:
        show_results(results, of_all)
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


def _seed_numbers(text: str) -> list[int]:
    """Return the seeds of a text like `1-5` or `1,3,7-9`. Raises InputError for other texts."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError.single("--seeds", f"{text!r} are no seeds", "like 1-5, or 1,3,7")
        numbers = range(int(first), int(last or first) + 1)
        # not len(numbers), which fails for numbers that do not fit into a C integer
        if len(seeds) + numbers.stop - numbers.start > _MAX_SEEDS:
            raise InputError.single(
                "--seeds", f"{text!r} are more than {_MAX_SEEDS:,} seeds", "use fewer"
            )
        seeds |= dict.fromkeys(numbers)
    if not seeds:
        raise InputError.single("--seeds", f"{text!r} has none", "like 1-5, or 1,3,7")
    return list(seeds)


def _parse_setting(text: str) -> tuple[str, Any]:
    """Return name and value of a text like NAME=VALUE. Raises InputError for other texts."""
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
    trees: Annotated[int, typer.Option(min=1, help="Trees, at most.")] = 10,
    depth: Annotated[int, typer.Option(min=1, max=8, help="Levels of each tree.")] = 4,
    operations: Annotated[int, typer.Option(min=1, help="Operations per decision, at most.")] = 150,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds, at most. From the second on, the trees drive.")
    ] = 4,
    seed: Annotated[int, typer.Option(min=0, help="The seed of all random draws.")] = 1,
) -> None:
    """Distil RL-CC's network into boosted trees, which a NIC computes.

    In the first round the network controls the flows in ns-3. Then the trees do, and the network
    says what it would have done in their place, until goodput agrees within 1 % and latency within
    5 %. Next to the trees two files are written: the report NAME.md, and NAME.svg with the error by
    number and depth of trees.

    Exit code: 0 if they agree, 1 if they do not after all rounds.
    """
    from orchestration.core.outputs import check_outputs, write_output
    from orchestration.training.rlcc.distill import Budget, error_picture, report, teacher_of
    from orchestration.training.rlcc.distill import distill as run

    page, picture = output.with_suffix(".md"), output.with_suffix(".svg")
    check_outputs([output, page, picture], [checkpoint])
    teacher = teacher_of(checkpoint)
    output.parent.mkdir(parents=True, exist_ok=True)
    distilled = run(teacher, Budget(trees, depth, operations), output, rounds, seed, _show)
    write_output(page, report(distilled, checkpoint))
    write_output(picture, error_picture(distilled.errors))
    typer.echo(f"{output}\n{page}\n{picture}")
    if not distilled.rounds[-1].agrees:
        raise typer.Exit(1)


def _show(number: int, done: Round) -> None:
    typer.echo(
        f"round {number}: {done.samples} windows, RMSE {done.rmse:.4f}, "
        f"{100 * done.within:.1f} % of actions within 0.01, "
        + ("the closed loops agree" if done.agrees else "the closed loops differ"),
        err=True,
    )
