"""`closloop train`: trains a tuner on a scenario."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import verb
from orchestration.cli.run import spare_threads

if TYPE_CHECKING:
    from orchestration.model.trial import Scalar
    from orchestration.training.train import Round


@verb()
def train(
    tuner: Annotated[
        str, "acc, pet, graphcc, drlet or drlet-local; or rl-cc: a congestion control."
    ],
    scenario: Annotated[
        str, "A campaign file to train on, or a scenario's name; default: the tuner."
    ] = "",
    backend: Annotated[str, "--on", "Train on this backend: emulated or fluid."] = "",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play in all.")] = 100,
    actors: Annotated[
        int, typer.Option(min=1, help="Episodes played with the same network. Part of the result.")
    ] = 2,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=0, help="Episodes side by side; 0: one a core.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Decides every draw of the training.")] = 1,
    init: Annotated[str, "Go on from this checkpoint's network: a name, or a file."] = "",
    per_switch: Annotated[bool, "A network for each switch (acc and pet)."] = False,
    setting: Annotated[list[str], "--set", "A setting of the learner or tuner: NAME=VALUE."] = [],  # noqa: B006
    architecture: Annotated[str, "rl-cc's network: mlp or lstm."] = "",
    out: Annotated[Path | None, "The folder; default: runs/train/TUNER."] = None,
    fresh: Annotated[bool, "Throw an earlier training in the folder away."] = False,
) -> None:
    """Train a tuner. Given again after Ctrl-C or a crash, it goes on where it was.

    Then use it: in a campaign, `{name: TUNER, checkpoint: FOLDER/checkpoint.safetensors}`.
    rl-cc is trained in ns-3, an update of its network an episode; `closloop distill` makes a
    policy of it.

    Example: closloop train graphcc --on fluid --episodes 20
    """
    spare_threads()

    from orchestration import wiring
    from orchestration.analysis.learning_curve import write_curve
    from orchestration.model.errors import InputError, NotReadyError
    from orchestration.training.learners import split_settings
    from orchestration.training.request import Episodes, TrainRequest, find_scenario
    from orchestration.training.train import train as run

    if find_spec("torch") is None:
        raise NotReadyError("training needs torch", "install it: pip install 'closloop[learn]'")
    if tuner == "rl-cc":
        foreign = (scenario, backend, init, per_switch or "", *setting)
        if any(foreign):
            raise InputError.single(
                "rl-cc",
                "takes --architecture, --episodes, --seed, --out and --fresh",
                "leave the rest out",
            )
        _train_rlcc(architecture or "mlp", episodes, seed, out, fresh)
        return
    if architecture:
        raise InputError.single("--architecture", f"{tuner} has one network", "leave it out")
    settings, params = split_settings(tuner, dict(_read(text) for text in setting))
    if per_switch and tuner not in ("acc", "pet"):
        raise InputError.single(
            "--per-switch", f"{tuner} has one network for all switches", "leave it out"
        )
    request = TrainRequest(
        tuner,
        find_scenario(scenario or tuner),
        backend,
        episodes,
        actors,
        seed,
        init,
        per_switch,
        settings,
        params,
    )
    engine = wiring.backend(Episodes(request).backend)
    folder = out or Path("runs/train") / tuner
    side_by_side = jobs or min(actors, len(os.sched_getaffinity(0)))
    with _Display(tuner, episodes) as display:
        checkpoint = run(request, engine, folder, side_by_side, display.show, fresh=fresh)
    page = write_curve(folder / "curve.csv", tuner)
    typer.echo(f"checkpoint: {checkpoint}\ncurve: {page}")


def _train_rlcc(architecture: str, updates: int, seed: int, out: Path | None, fresh: bool) -> None:
    from orchestration.model.errors import InputError
    from orchestration.training.rlcc.train import RlccRequest, train
    from tuners.nic.networks import ARCHITECTURES

    if architecture not in ARCHITECTURES:
        raise InputError.single(
            "--architecture", f"{architecture!r} is none", f"use {' or '.join(ARCHITECTURES)}"
        )
    request = RlccRequest(ARCHITECTURES[architecture].kind, seed, updates)
    folder = out or Path("runs/train") / f"rl-cc-{architecture}-{seed}"
    with _Display("rl-cc", updates) as display:

        def show(done: int, reward: float, delta: float, inflation: float) -> None:
            text = f"reward {reward:.4f}  delta {delta:+.4f}  inflation {inflation:.2f}"
            display.note(done, updates, text)

        checkpoint = train(
            request,
            folder,
            lambda done, figures: show(done, figures.reward, figures.delta, figures.inflation),
            fresh=fresh,
        )
    typer.echo(f"checkpoint: {checkpoint}\ncurve: {folder / 'curve.csv'}")


def _read(text: str) -> tuple[str, Scalar]:
    from orchestration.model.errors import InputError

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


class _Display:
    """A progress bar on a terminal, a line per round elsewhere."""

    def __init__(self, tuner: str, episodes: int) -> None:
        from rich import progress
        from rich.console import Console

        self._live = sys.stderr.isatty()
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._task = self._progress.add_task(f"training {tuner}", total=episodes)

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: Round, episodes: int) -> None:
        """Show a round's figures."""
        text = (
            f"reward {done.reward:.3f}  loss {done.loss:.4f}  explore {done.explore:.2f}  "
            f"act {done.act_s:.1f} s  learn {done.learn_s:.1f} s"
        )
        self.note(done.episodes, episodes, text)

    def note(self, done: int, episodes: int, text: str) -> None:
        """Show how many episodes are done, and a line about the last."""
        self._progress.update(self._task, completed=done, description=text)
        if not self._live:
            print(f"episode {done}/{episodes}  {text}", file=sys.stderr, flush=True)
