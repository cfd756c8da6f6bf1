"""Campaign files of replays: the list of parents decides trials, seeds and what they are called."""

import re

import pytest

from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError

DIGEST = "ab" * 32
BASE = """campaign: again
testbed: graphcc
backend: fluid
tuners: [secn1, {name: static, label: deep, kmin_bytes: 1KB, kmax_bytes: 9KB}]
traffic: [{kind: replay, file: "flows-{repeat}.csv", class: "incast"}]
duration: 1ms
"""


def parent(*rows: tuple[str, int, int]) -> str:
    lines = ["parent:", "  run: old", "  trials:"]
    for tuner, repeat, seed in rows:
        lines.append(
            f"    - {{tuner: {tuner}, repeat: {repeat}, seed: {seed}, "
            f'trial: "{tuner}-r{repeat}", sha256: "{DIGEST}"}}'
        )
    return "\n".join([*lines, ""])


def write(tmp_path, text: str, repeats=(1, 2, 3)):
    for repeat in repeats:
        flows = f"start_ns,src,dst,bytes,class\n{repeat},h1,h2,100,incast\n"
        (tmp_path / f"flows-{repeat}.csv").write_text(flows, encoding="utf-8")
    path = tmp_path / "c.yml"
    path.write_text(text, encoding="utf-8")
    return path


def test_trials_are_those_of_the_parents_list(tmp_path):
    rows = [("secn1", 1, 11), ("deep", 1, 11), ("secn1", 3, 33)]
    path = write(tmp_path, BASE + "repeats: 3\n" + parent(*rows), (1, 3))
    trials = load_campaign(path).trials
    found = {(str(t.cell["tuner"]), t.repeat, t.seed, t.parent) for t in trials}
    assert found == {
        (tuner, repeat, seed, f"old/{tuner}-r{repeat} sha256:{DIGEST}")
        for tuner, repeat, seed in rows
    }
    assert {t.traffic[0].file for t in trials} == {str(tmp_path / "flows-{repeat}.csv")}
    digests = {t.repeat: t.files[str(tmp_path / "flows-{repeat}.csv")] for t in trials}
    assert digests[1] != digests[3]


def test_fewer_repeats_leave_cells_without_trials_out(tmp_path):
    rows = [("secn1", 1, 11), ("deep", 2, 22)]
    path = write(tmp_path, BASE + "repeats: 2\n" + parent(*rows))
    assert len(load_campaign(path).cells) == 2
    assert load_campaign(path, repeats=1).cells == ({"tuner": "secn1"},)


def test_a_replay_of_a_file_has_seeds_of_its_own_and_knows_the_file(tmp_path):
    text = BASE + f'repeats: 2\nparent: {{run: flows.csv, sha256: "{DIGEST}"}}\n'
    trials = load_campaign(write(tmp_path, text)).trials
    assert len(trials) == 4
    assert len({t.seed for t in trials}) == 2
    assert {t.parent for t in trials} == {f"flows.csv sha256:{DIGEST}"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "repeats: 1\n" + parent(("secn2", 1, 1)),
            ":11: no tuner of the campaign is called 'secn2'",
        ),
        ("repeats: 1\n" + parent(("deep", 1, 1), ("deep", 1, 2)), ":12: a second trial for 'deep'"),
        (
            "repeats: 4\n" + parent(("deep", 1, 1)),
            ":7: 4 repeats, and the parent's trials end with",
        ),
        ("repeats: 1\n" + parent(("deep", 2, 1)), ":7: no trial of the parent is within 1 repeats"),
        ("repeats: 1\nparent: {run: x, sha256: beef}\n", ":8: 'beef' is no SHA-256"),
        ("repeats: 4\n", ":5: .*flows-4.csv: cannot be read"),
    ],
)
def test_what_is_wrong_with_a_parent_is_said_at_its_line(tmp_path, more, said):
    with pytest.raises(InputError) as caught:
        load_campaign(write(tmp_path, BASE + more))
    assert re.search(said, str(caught.value))


def test_a_class_that_no_flow_has_is_refused(tmp_path):
    path = write(tmp_path, BASE.replace('"incast"', '"incost"') + "repeats: 1\n")
    with pytest.raises(InputError, match="no flows of class 'incost'\n  -> did you mean 'incast'"):
        load_campaign(path)
