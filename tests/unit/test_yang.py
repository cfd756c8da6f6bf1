"""Tables of a switch's own YANG models."""

import sys
from pathlib import Path

import pytest

from orchestration.device.agent.yang import Leaf, parse, read_tables, tables_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from ars_models import ARS


def test_a_module_is_its_tables_with_keys_words_and_ranges():
    tables = tables_of(ARS, "ARS_")
    assert sorted(tables) == ["ARS_INTERFACE", "ARS_OBJECT", "ARS_PROFILE"]
    profile, objects = tables["ARS_PROFILE"], tables["ARS_OBJECT"]
    assert (profile.keys, profile.most) == (("profile_name",), 1)
    assert profile.leaves["ars_nhg_path_selector_mode"].words == ("global", "interface", "nexthop")
    assert objects.leaves["assign_mode"].words == ("per_flowlet_quality", "per_packet_quality")
    idle = objects.leaves["flowlet_idle_time"]
    assert [idle.takes(us) for us in (1, 2, 2047, 2048)] == [False, True, True, False]
    assert objects.leaves["ars_obj_name"] == Leaf()
    assert tables_of(ARS, "QUEUE") == {}


def test_strings_comments_and_pieces():
    (statement,) = parse(
        'a "x\\n\\"{;}//" + \'y\\n\' { // one;\n b; /* { */ c "d e"; '
        "pattern '[+\"]*'; e http://x/y; }"
    )
    assert statement.argument == 'x\n"{;}//y\\n'
    assert [(part.keyword, part.argument) for part in statement.parts] == [
        ("b", ""),
        ("c", "d e"),
        ("pattern", '[+"]*'),
        ("e", "http://x/y"),
    ]


@pytest.mark.parametrize(
    ("kind", "ranges"),
    [
        ("type uint16;", ((0, 65_535),)),
        ("type int8;", ((-128, 127),)),
        ('type uint8 { range "1..4 | 9 | 100..max"; }', ((1, 4), (9, 9), (100, 255))),
        ('type uint8 { range "min..3"; }', ((0, 3),)),
        ("type stypes:percent;", ()),
        ("type string;", ()),
    ],
)
def test_ranges(kind, ranges):
    table = f"container T {{ list L {{ key k; leaf f {{ {kind} }} }} }}"
    text = f"module m {{ container m {{ {table} }} }}"
    assert tables_of(text)["T"].leaves["f"].ranges == ranges


@pytest.mark.parametrize("text", ["a {", "a; }", "a b c;", "{ a; }", 'a "b', "a b"])
def test_what_is_no_yang_is_an_error(text):
    with pytest.raises(ValueError, match=r"no YANG|brace|statement"):
        parse(text)


def test_a_folder_has_the_tables_of_all_its_models(tmp_path):
    assert read_tables("ARS_", str(tmp_path / "none")) == {}
    (tmp_path / "broken.yang").write_text("container ARS_X {")
    (tmp_path / "other.yang").write_text("module o { container o { container PORT { list L; } } }")
    (tmp_path / "ars.txt").write_text(ARS)
    assert read_tables("ARS_", str(tmp_path)) == {}
    (tmp_path / "whatever.yang").write_text(ARS)
    assert "ARS_OBJECT" in read_tables("ARS_", str(tmp_path))
