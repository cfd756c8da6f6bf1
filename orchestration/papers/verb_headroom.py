"""`closloop headroom`: what any tuner could win, by condition and objective."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.analysis.metrics import HEADROOM
from orchestration.cli.options import Json, verb
from orchestration.cli.terminal import Phases, print_json, write_page
from orchestration.render.json import json_text
from orchestration.render.terminal import show

if TYPE_CHECKING:
    from orchestration.papers.headroom_map import HeadroomMap


@verb(
    "Examples:  closloop headroom runs/headroom --by nics --metric mice_p95  |  "
    "closloop headroom runs/headroom --setting nics -o headroom.md"
)
def headroom(
    run: Annotated[Path, "A run folder whose tuners are static settings."],
    *,
    metric: Annotated[
        list[str],
        "--metric",
        "An objective, of the papers' metrics; each chooses its own settings.",
    ] = [*HEADROOM],  # noqa: B006
    by: Annotated[list[str], "--by", "A factor whose levels get a best setting each."] = [],  # noqa: B006
    setting: Annotated[
        list[str], "--setting", "A factor whose levels are part of the setting."
    ] = [],  # noqa: B006
    folds: Annotated[int, typer.Option(min=2, help="Parts of the seeds; 2 are halves.")] = 2,
    output: Annotated[
        Path | None, "--output", "-o", "A page to write the map into; beside it .json and .svg."
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what any tuner could win: the loss of the best static setting, by condition.

    It is judged against the best setting of each condition, on other seeds than those that choose
    (docs/headroom.md). A page that is there keeps what stands above the map.

    Exit code: 0 done, 2 bad input.
    """
    from orchestration.core.outputs import check_outputs
    from orchestration.papers.headroom_map import make_map, to_json
    from orchestration.papers.map_conditions import check_metrics, scene_of
    from orchestration.papers.map_page import page, with_former
    from orchestration.papers.map_picture import picture
    from orchestration.papers.results import measure_campaign
    from orchestration.results.found import recorded_files

    check_metrics(metric)
    beside = [] if output is None else [output.with_suffix(end) for end in (".json", ".svg")]
    if output is not None:
        check_outputs([output, *beside], recorded_files([run]))
    with Phases() as phases:
        phases.phase("Reading trials")
        trials = measure_campaign(run, phases.step)
        phases.phase("Choosing and judging")
        scene = scene_of(str(run), trials, by, setting)
        found = make_map(scene, list(dict.fromkeys(metric)), folds)
    for arm in scene.left_out:
        typer.echo(f"left out, since it is no static setting: {arm}", err=True)
    if as_json:
        print_json(to_json(found))
    else:
        _show(found)
    if output is not None:
        data, drawn = beside
        former = output.read_text(encoding="utf-8") if output.exists() else ""
        write_page(with_former(page(found, drawn.name), former), output)
        text = json_text(to_json(found)) + "\n"
        write_page(text, data, "data")
        write_page(picture(found), drawn, "picture")


def _show(found: HeadroomMap) -> None:
    from orchestration.papers.map_page import group_table, summary

    for group in found.groups:
        show(group_table(found, group), "")
    for sentence in summary(found):
        typer.echo(sentence)
