"""The strict YAML loader: what is read, what is refused, and where it says that the fault is."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from inventory.ansible import load_rack
from inventory.files import load_testbed
from inventory.strictyaml import (
    Duration,
    Rate,
    Size,
    StrictModel,
    in_order,
    parse,
    read,
    suggest,
)
from inventory.yamltree import MAX_CHARS, MAX_DEPTH, MAX_FAULTS
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError, Problem
from orchestration.exchange.mapping import CsvMapping, read_mapping
from orchestration.exchange.replay_file import read_hosts


class Poisson(StrictModel):
    kind: Literal["poisson"]
    load: Annotated[float, Field(gt=0, le=1)]


class Incast(StrictModel):
    kind: Literal["incast"]
    sizes: tuple[Size, ...]


class Plan(StrictModel):
    rate: Rate = 1
    delay: Duration = 1
    count: int = 0
    share: float = 0.0
    on: bool = False
    backend: Literal["fluid", "emulated"] = "fluid"
    traffic: tuple[Annotated[Poisson | Incast, Field(discriminator="kind")], ...] = ()
    named: dict[str, Poisson] = Field(default_factory=dict)
    pair: Annotated[tuple[int, ...], Field(min_length=2)] = (1, 2)


def validated(document, model):
    result, problems = document.check(model)
    if problems:
        raise InputError(in_order(problems))
    return result


def refusal(text, model=Plan):
    with pytest.raises(InputError) as caught:
        validated(parse(text, "plan.yml"), model)
    return str(caught.value).splitlines()


def test_plain_scalars_follow_yaml_1_2():
    text = "a: yes\nb: on\nc: 2026-11-21\nd: 1_000\ne: 0o17\nf: 010\ng: 0x1F\nh: 1e3\ni: ~\nj: 1:30"
    assert parse(text, "f").data == {
        "a": "yes",
        "b": "on",
        "c": "2026-11-21",
        "d": "1_000",
        "e": 15,
        "f": 10,
        "g": 31,
        "h": 1000.0,
        "i": None,
        "j": "1:30",
    }


def test_quoted_scalars_are_text():
    assert parse("a: '1'\nb: \"true\"\nc: ''", "f").data == {"a": "1", "b": "true", "c": ""}


def test_merge_key_is_an_ordinary_key():
    assert parse("<<: {a: 1}", "f").data == {"<<": {"a": 1}}


def test_valid_file_becomes_a_frozen_model():
    text = """
rate: 25Gbps
delay: 100us
share: 1
traffic:
  - {kind: poisson, load: 0.6}
  - kind: incast
    sizes: [64KB, 1MiB]
"""
    plan = validated(parse(text, "plan.yml"), Plan)
    assert (plan.rate, plan.delay, plan.share) == (25_000_000_000, 100_000, 1.0)
    first, second = plan.traffic
    assert first == Poisson(kind="poisson", load=0.6)
    assert second.sizes == (64_000, 1_048_576)
    with pytest.raises(ValueError, match="frozen"):
        plan.count = 2


def test_every_duplicate_key_is_reported_with_the_schemas_errors():
    named = "named:\n  a: {kind: poisson, kind: poisson, load: 1}"
    assert refusal(f"count: 1\nshare: x\ncount: 2\n{named}\ncount: 3") == [
        "plan.yml:2: 'share' is 'x', not a number",
        "  -> write a number",
        "plan.yml:3: duplicate key 'count', first in line 1",
        "plan.yml:5: duplicate key 'kind', first in line 5",
        "plan.yml:6: duplicate key 'count', first in line 1",
        "  -> keep one of the two",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cuont: 1", "unknown field 'cuont'\n  -> did you mean 'count'? remove it or use one of"),
        ("rate: 25GBps", "'25GBps' has unknown unit 'GBps' for a rate: bytes per second are not"),
        ("rate: 25", "25 is not a rate with a unit\n  -> write it like 25Gbps"),
        ("count: '1'", "'count' is '1', not a whole number"),
        ("count: 1.0", "'count' is 1.0, not a whole number"),
        ("count: true", "'count' is true, not a whole number"),
        ("count: [1]", "'count' is a list, not a whole number"),
        ("count:", "'count' has no value\n  -> write one after the colon, or remove the field"),
        ("share: .inf", "'share' is inf, not a finite number"),
        ("on: yes", "'on' is 'yes', not true or false\n  -> write true or false"),
        (
            "backend: emulate",
            "'backend' is 'emulate'\n  -> did you mean 'emulated'? use fluid, emu",
        ),
        ("pair: [1]", "'pair' is a list\n  -> use more items or characters, at least 2"),
        ("pair: [1, x]", "item 2 of 'pair' is 'x', not a whole number"),
        ("traffic: 3", "'traffic' is 3, not a list"),
        ("traffic: [3]", "item 1 of 'traffic' is 3, not a mapping"),
        (
            "traffic: [{kind: poison, load: 1}]",
            "unknown kind 'poison'\n  -> did you mean 'poisson'",
        ),
        ("traffic: [{load: 1}]", "missing field 'kind'\n  -> use one of poisson, incast"),
        ("traffic: [{kind: poisson}]", "missing field 'load'\n  -> add it"),
        ("traffic: [{kind: poisson, load: 1.4}]", "'load' is 1.4\n  -> use at most 1"),
        ("traffic: [{kind: poisson, load: 0}]", "'load' is 0\n  -> use more than 0"),
        (
            "named: {x: {kind: poisson, load: 1, lod: 2}}",
            "unknown field 'lod'\n  -> did you mean 'l",
        ),
    ],
)
def test_schema_error_in_plain_words(line, said):
    assert "\n".join(refusal(f"# plan\n{line}")).startswith(f"plan.yml:2: {said}")


def test_all_errors_come_at_once_in_the_order_of_the_lines():
    text = """
traffic:
  - kind: poisson
    load: 2
  - kind: incast
    sizes:
      - 1KB
      - 1kB
rate: 1
"""
    lines = [line for line in refusal(text) if line.startswith("plan.yml")]
    assert [line.partition(": ")[0] for line in lines] == ["plan.yml:4", "plan.yml:8", "plan.yml:9"]


def test_check_leaves_raising_to_the_caller():
    document = parse("count: x\nrate: 25Gbps", "plan.yml")
    plan, problems = document.check(Plan)
    assert plan is None
    problems.append(document.problem(("rate",), "too fast", "slow down"))
    assert [problem.where for problem in in_order(problems)] == ["plan.yml:1", "plan.yml:2"]


def test_problems_are_ordered_by_number_and_not_repeated():
    problems = [Problem("f:10", "b"), Problem("f:9", "a"), Problem("f:10", "b")]
    assert [problem.where for problem in in_order(problems)] == ["f:9", "f:10"]


@pytest.mark.parametrize(
    ("loc", "line"),
    [
        ((), 1),
        (("a",), 1),
        (("a", "b"), 2),
        (("a", "b", 0), 3),
        (("a", "b", 1), 4),
        (("a", "b", 1, "incast", "kind"), 4),
        (("a", "b", 1, "incast", "size"), 5),
        (("a", "b", 1, "incast", "missing"), 4),
        (("a", "b", 7), 2),
        (("nowhere",), 1),
        (("a", "b", 0, "int"), 3),
    ],
)
def test_where(loc, line):
    document = parse("a:\n  b:\n    - 1\n    - kind: incast\n      size: 2\n", "f.yml")
    assert document.where(loc) == f"f.yml:{line}"


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("", "f:1", "the file is empty"),
        ("- a", "f:1", "the file is not a mapping"),
        ("text", "f:1", "the file is not a mapping"),
        ("a: 1\nb: c: d", "f:2", "not valid YAML: mapping values are not allowed here"),
        ("a: [1\nb: 2", "f:2", "not valid YAML: while parsing a flow sequence"),
        ("a: 1\n\tb: 2", "f:2", "not valid YAML"),
        ("a: \x01", "f", "not valid YAML: unacceptable character #x0001"),
        ("a: 1\n---\nb: 2", "f:2", "a second YAML document"),
        ("a: " + "[" * 60 + "]" * 60, "f:1", "nested more than 50 deep"),
    ],
)
def test_what_is_no_mapping_is_refused(text, where, said):
    with pytest.raises(InputError) as caught:
        parse(text, "f")
    (problem,) = caught.value.problems
    assert problem.where == where
    assert problem.what.startswith(said)
    assert problem.remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x 1", "anchor '&x' is not accepted"),
        ("a: *x", "alias '*x' is not accepted"),
        ("a: !!str 1", "tag 'tag:yaml.org,2002:str' is not accepted"),
        ("a: !python/object:os.system {}", "tag '!python/object:os.system' is not accepted"),
        ("? [a, b]\n: 1", "a key that is not text"),
        ('a: "\\ud800"', "a surrogate is not a character"),
    ],
)
def test_what_is_not_plain_data_is_a_fault(text, said):
    (fault,) = parse(text, "f").faults
    assert (fault.where, fault.what) == ("f:1", said)
    assert fault.remedy


def test_billion_laughs_stays_small():
    text = "a: &a [x, x]\n" + "".join(f"b{i}: [*a, *a]\n" for i in range(40))
    assert len(parse(text, "f").faults) == 81


# Each is refused before it has been read to its end. Deep ones would take hours otherwise: the
# parser's time grows with the square of the depth.
HUGE = 300_000
DEEP = f"nested more than {MAX_DEPTH} deep"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("a: " + "[" * HUGE, "f:1", DEEP),
        ("a: " + "[" * HUGE + "]" * HUGE, "f:1", DEEP),
        ("a:\n" + " [\n" * HUGE, "f:52", DEEP),
        ("{a: " * HUGE, "f:1", DEEP),
        ("a: " + "[{b: " * HUGE, "f:1", DEEP),
        ("- " * HUGE, "f:1", DEEP),
        ("? " * HUGE, "f:1", DEEP),
        ("\n".join(" " * depth + "a:" for depth in range(2000)), "f:51", DEEP),
        ("".join("  " * depth + "-\n" for depth in range(2000)), "f:52", DEEP),
        ("a: 1\n" * HUGE, "f:101", "100 faults up to here; what follows was not read"),
        ("a: [" + "*a," * HUGE, "f:1", "100 faults up to here"),
        ("a: [" + "&a 1," * HUGE, "f:1", "100 faults up to here"),
        ("a: [" + "!!set {}," * HUGE, "f:1", "100 faults up to here"),
        ("---\na: 1\n" * HUGE, "f:3", "a second YAML document"),
        ("a: 1\n" * (MAX_CHARS // 5 + 1), "f", "more than 8 million characters"),
        ("a: '" + "x" * MAX_CHARS, "f", "more than 8 million characters"),
        ("#" * (MAX_CHARS + 1), "f", "more than 8 million characters"),
        ("a: 1\n" + "\n" * MAX_CHARS, "f", "more than 8 million characters"),
    ],
)
def test_what_would_hang_is_refused_at_once(text, where, said):
    with pytest.raises(InputError) as caught:
        parse(text, "f")
    problem = caught.value.problems[-1]
    assert (problem.where, problem.what.startswith(said)) == (where, True), problem
    assert problem.remedy


def test_alias_bomb_is_not_expanded():
    names = "abcdefghi"
    lines = ["a: &a [lol, lol]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in pairwise(names)]
    document = parse("\n".join(lines), "f")
    assert document.data["i"] == [None] * 9
    assert len(document.faults) == 9 + 8 * 9


def test_the_most_that_is_accepted(monkeypatch):
    deep = "a: " + "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    assert parse(deep, "f").faults == ()
    monkeypatch.setattr("inventory.yamltree.MAX_CHARS", 100_000)
    assert len(parse("a: " + "x" * 99_997, "f").data["a"]) == 99_997


@given(st.lists(st.sampled_from(["[", "{", "? ", "- ", "a: ", "\n", " ", ",", "]", "}"])))
def test_any_nesting_is_read_or_refused(parts):
    problems = ()
    try:
        parse("".join(parts) * 80, "f")
    except InputError as error:
        problems = error.problems
    assert all(problem.where.startswith("f") and problem.remedy for problem in problems)


def test_many_wrong_fields_are_refused_at_once():
    document = parse("".join(f"x{i}: 1\n" for i in range(MAX_FAULTS + 1)), "f")
    model, problems = document.check(Plan)
    assert model is None
    assert len(problems) == MAX_FAULTS + 1
    assert str(in_order(problems)[0]) == (
        "f: more than 100 problems, the first of them are here\n  -> correct these first"
    )


def test_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "plan.yml"
    with path.open("wb") as file:
        file.write(b"a: 1\n")
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"plan\.yml: more than 8 million characters"):
        read(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        load_campaign,
        load_rack,
        lambda path: load_testbed(str(path)),
        partial(read_mapping, schema=CsvMapping),
        partial(read_hosts, testbed=load_testbed("graphcc")),
    ],
    ids=["campaign", "inventory", "testbed", "mapping", "hosts"],
)
def test_every_kind_of_file_is_bounded(tmp_path: Path, load):
    path = tmp_path / "deep.yml"
    path.write_text("name: " + "[" * HUGE)
    with pytest.raises(InputError, match=f"deep.yml:1: {DEEP}"):
        load(path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "cannot be read: is a directory"),
        (lambda path: path.write_bytes(b"a: \xff"), "not UTF-8 text"),
    ],
)
def test_unreadable_file(tmp_path, make, said):
    path = tmp_path / "plan.yml"
    make(path)
    with pytest.raises(InputError) as caught:
        read(path)
    (problem,) = caught.value.problems
    assert problem.where == str(path)
    assert problem.what.startswith(said)


def test_suggest():
    assert suggest("grafcc", ["acc", "graphcc"]) == "did you mean 'graphcc'? "
    assert suggest("zzz", ["acc", "graphcc"]) == ""


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    problems = ()
    try:
        validated(parse(text, "f"), Plan)
    except InputError as error:
        problems = error.problems
    assert all(problem.where.startswith("f") and problem.remedy for problem in problems)


words = st.text(st.characters(exclude_categories=("C", "Z")), max_size=8)
trees = st.recursive(
    st.booleans() | st.integers(-(10**9), 10**9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(words, trees, max_size=4))
def test_json_is_read_as_json(data):
    assert parse(json.dumps(data, ensure_ascii=False), "f").data == data
