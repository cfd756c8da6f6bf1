"""`closloop train`: trains a tuner by the protocol, or for a number of episodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import ClusterOption, Json, verb
from orchestration.cli.terminal import print_json
from orchestration.core.errors import InputError, check_known, not_installed
from orchestration.core.machine import spare_threads
from orchestration.run.launcher import executor_named

if TYPE_CHECKING:
    from orchestration.core.trial import Scalar
    from orchestration.run.executors import Place
    from orchestration.training.protocol import Rule
    from orchestration.training.request import TrainRequest


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
class _Asked:
    """What is asked of either kind of training."""

    tuner: str
    scenario: str
    backend: str
    actors: int
    init: str
    per_switch: bool
    settings: dict[str, Scalar]
    params: dict[str, Scalar]
    out: Path | None
    fresh: bool
    cluster: str


@verb()
def train(
    tuner: Annotated[
        str, "acc, pet, graphcc, drlet or drlet-local; or rl-cc: a congestion control."
    ],
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
    spare_threads()

    from orchestration.training.learners import split_settings

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
    if per_switch and tuner not in ("acc", "pet"):
        raise InputError.single(
            "--per-switch", f"{tuner} has one network for all switches", "leave it out"
        )
    asked = _Asked(
        *(tuner, scenario, backend, actors, init, per_switch, settings, params, out, fresh, cluster)
    )
    if not episodes:
        if seed is not None:
            raise InputError.single(
                "--seed", "the protocol trains several seeds", f"use --seeds {seed}"
            )
        _by_protocol(asked, by, jobs, as_json=as_json)
        return
    if given := by.given():
        raise InputError.single(
            "--episodes", f"a training by episodes takes no {', '.join(given)}", "leave one out"
        )
    _by_episodes(asked, episodes, _or_1(seed), jobs)


def _cores(place: Place, jobs: int) -> int:
    """Return how many episodes are played at once, at most; `jobs` if it says that."""
    return jobs or place.slots() or len(os.sched_getaffinity(0))


def _by_episodes(asked: _Asked, episodes: int, seed: int, jobs: int) -> None:
    """Train once, for a number of episodes."""
    from orchestration.analysis.learning_curve import write_curve
    from orchestration.run import wiring
    from orchestration.training.display import Display
    from orchestration.training.request import Episodes, find_scenario
    from orchestration.training.train import train as run

    scenario = find_scenario(asked.scenario or asked.tuner)
    request = _request(asked, scenario, seed, episodes)
    engine = wiring.backend(Episodes(request).backend)
    folder = asked.out or Path("runs/train") / asked.tuner
    with executor_named(asked.cluster) as place, Display("episode") as display:
        checkpoint = run(
            request,
            engine,
            folder,
            min(asked.actors, _cores(place, jobs)),
            lambda done, total: display.round(asked.tuner, done, total),
            fresh=asked.fresh,
            place=place,
        )
    page = write_curve(folder / "curve.csv", asked.tuner)
    typer.echo(f"checkpoint: {checkpoint}\ncurve: {page}")


def _by_protocol(asked: _Asked, by: ByProtocol, jobs: int, *, as_json: bool) -> None:
    """Train every seed by the protocol, and print what they came to."""
    from orchestration.analysis.learning_curve import write_curve
    from orchestration.render.terminal import show
    from orchestration.training.display import Display, results_table
    from orchestration.training.outcome import verdict
    from orchestration.training.protocol import load_protocol
    from orchestration.training.request import find_scenario
    from orchestration.training.seeds import Listener, train_seeds

    protocol = load_protocol()
    planned = protocol.training(asked.tuner, by.transport)
    if bool(asked.scenario) != bool(by.held_out):
        raise InputError.single(
            "--scenario",
            "a training by the protocol needs a scenario and a held-out one",
            "give --scenario and --held-out, or train by --episodes",
        )
    held_out = find_scenario(by.held_out or planned.held_out)
    rule = protocol.rule(asked.tuner, held_out, by.decisions)
    numbers = _numbers(by.seeds) if by.seeds else list(range(1, protocol.least_seeds + 1))
    name = f"{asked.tuner}-{planned.transport}"
    scenario = find_scenario(asked.scenario or planned.scenario)
    requests = {
        f"{name}-{number}": _request(asked, scenario, number, 0, rule) for number in numbers
    }
    folder = asked.out or Path("runs/train") / name
    with executor_named(asked.cluster) as place, Display("decision") as display:
        listener = Listener(display.round, display.note)
        cores = _cores(place, jobs)
        results = train_seeds(requests, folder, cores, listener, fresh=asked.fresh, place=place)
    for one in requests:
        write_curve(folder / one / "curve.csv", one)
    found = verdict(list(results.values()), protocol.share_above, protocol.least_seeds)
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
        show(results_table(results, found))
        typer.echo(f"networks: {folder}/{name}-*/checkpoint.safetensors, curves: curve.html there")


def _request(
    asked: _Asked, scenario: str, seed: int, episodes: int, rule: Rule | None = None
) -> TrainRequest:
    from orchestration.training.request import TrainRequest

    return TrainRequest(
        asked.tuner,
        scenario,
        asked.backend,
        episodes,
        asked.actors,
        seed,
        asked.init,
        asked.per_switch,
        asked.settings,
        asked.params,
        rule,
    )


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


def _read(text: str) -> tuple[str, Scalar]:

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
