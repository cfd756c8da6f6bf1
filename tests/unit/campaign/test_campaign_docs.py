"""The page of the campaign file has all fields and names; docs/campaign.md's examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from inventory.strictyaml import field_names
from orchestration.campaign import schema
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.patterns import pattern_model
from orchestration.campaign.plan import make_plan
from orchestration.campaign.repeats import Adaptive
from orchestration.campaign.skeleton.factors import COMPARISONS
from orchestration.core import plugins
from orchestration.core.capabilities import backends
from orchestration.core.congestion import all_controls
from orchestration.core.pattern import GROUP
from orchestration.run.checked import checked
from tuners import registry

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "campaign.md").read_text(encoding="utf-8")
FIELDS = (ROOT / "docs" / "generated" / "campaign-file.md").read_text(encoding="utf-8")
QUICKSTART = ROOT / "examples" / "quickstart.yml"

PATTERNS = {kind: pattern_model(kind, "") for kind in plugins.offered(GROUP)}
MODELS: tuple[type[BaseModel], ...] = (
    schema.CampaignFile,
    schema.Tuner,
    schema.Host,
    schema.Fault,
    Adaptive,
    *PATTERNS.values(),
)


def rows() -> dict[str, list[list[str]]]:
    """Return the cells of each table row that documents a field, by the field's name."""
    result: dict[str, list[list[str]]] = {}
    for line in FIELDS.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if line.startswith("|"):
            for name in re.findall(r"`([\w-]+)`", " ".join(cells[:2])):
                result.setdefault(name, []).append(cells)
    return result


@pytest.mark.parametrize(
    ("model", "field"), [(model, field) for model in MODELS for field in field_names(model)]
)
def test_every_field_is_in_a_table(model: type[BaseModel], field: str) -> None:
    assert field in rows()


@pytest.mark.parametrize("field", [*schema.CampaignFile.model_fields])
def test_required_fields_are_called_required(field: str) -> None:
    required = schema.CampaignFile.model_fields[field].is_required()
    assert any(("required" in cells) == required for cells in rows()[field])


@pytest.mark.parametrize(
    "word",
    [
        *PATTERNS,
        *all_controls(),
        *(backend.name for backend in backends()),
        *registry.names(),
    ],
)
def test_every_choice_is_named(word: str) -> None:
    assert f"`{word}`" in FIELDS


def test_documented_defaults_are_the_schemas() -> None:
    default = {
        name: field.get_default() for name, field in schema.CampaignFile.model_fields.items()
    }
    assert (default["repeats"], default["seed"], default["backend"]) == (5, 1, "emulated")
    assert (default["drain"], default["sample_period"]) == (200_000_000, 100_000)
    for name, text in (("repeats", "5"), ("seed", "1"), ("drain", "200ms")):
        assert any(f"`{text}`" in cells for cells in rows()[name])


def test_examples_in_the_docs_are_campaigns(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    smallest, testbed, tuners, compared, factors, repeats = blocks
    anywhere = "campaign: c\nduration: 10ms\n"
    start = f"{anywhere}testbed: graphcc\n"
    traffic = "traffic: [{kind: message-mix, load: 0.5}]\n"
    counts = []
    one = start + "tuners: [secn1]\n"
    texts = (
        smallest,
        anywhere + traffic + testbed,
        start + traffic + tuners,
        start + "traffic: [{kind: poisson, workload: WebSearch, load: 0.3}]\n" + compared,
        one + factors,
        one + traffic + repeats,
    )
    for text in texts:
        file = tmp_path / "c.yml"
        file.write_text(text, encoding="utf-8")
        counts.append(len(load_campaign(file).trials))
    assert counts == [10, 10, 10, 30, 20, 60]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(QUICKSTART.parent.glob("*.yml")), ids=lambda one: one.stem)
def test_examples_can_be_run(path: Path) -> None:
    checked(load_campaign(path))


def test_the_gallery_shows_every_packaged_comparison() -> None:
    text = (ROOT / "docs" / "generated" / "gallery.md").read_text(encoding="utf-8")
    pictures = [ROOT / "docs" / "pictures" / f"compare-{name}.png" for name in COMPARISONS]
    for name, picture in zip(COMPARISONS, pictures, strict=True):
        assert f"closloop run examples/compare/{name}.yml" in text
        assert f"(../pictures/{picture.name})" in text
    assert sum(picture.stat().st_size for picture in pictures) < 600_000


def test_the_example_of_two_transports_has_both_in_all_trials() -> None:
    campaign = load_campaign(QUICKSTART.with_name("rdma-beside-tcp.yml"))
    for trial in campaign.trials:
        transports = {pattern.queue_class: pattern.congestion_control for pattern in trial.traffic}
        assert transports == {"rdma": "dcqcn", "tcp": ""}


def test_quickstart_has_what_a_learned_tuner_has_to_beat(tmp_path: Path) -> None:
    campaign = load_campaign(QUICKSTART)
    arms = [cell["tuner"] for cell in campaign.cells]
    assert arms == ["secn1", "best-static", "acc", "placebo-acc"]
    plan = make_plan(campaign, 2, tmp_path)
    assert plan.wall_s < 180 / 2  # a slower machine needs room
    assert all(one.enough for one in plan.deliverable_loads)


def test_two_published_settings_are_compared_on_every_backend(tmp_path: Path) -> None:
    path = QUICKSTART.with_name("thresholds.yml")
    assert load_campaign(path).cells == ({"tuner": "secn1"}, {"tuner": "secn2"})
    assert make_plan(load_campaign(path, backend="fluid"), 2, tmp_path).wall_s < 2
