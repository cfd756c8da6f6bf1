"""`closloop distill`: makes boosted trees of RL-CC's network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.options import verb

if TYPE_CHECKING:
    from orchestration.training.rlcc.distill import Round


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
    from orchestration.training.rlcc.distill import distill as run
    from orchestration.training.rlcc.distill_report import report, teacher_of, trade_picture
    from orchestration.training.rlcc.trees import Budget

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
