"""One module formats problems; what a remedy names exists, and a test runs it."""

import ast
import re
import tomllib
from collections.abc import Collection

import commands
import pytest
import remedies
from trees import ROOT, product

from orchestration.core.problems import Code

FORMATTER = "orchestration/core/problems.py"
# What runs on devices or in a rack's guest stands alone, and sends its errors as two texts.
ON_DEVICES = "orchestration/agent/"
ARROW = re.compile(r"\n\s*-> |^ {2,}-> ")
# Help, and pages that are written: what they name exists, but they are no remedies.
VERBS = re.compile(r"/verbs?(_\w+)?\.py:")
NO_REMEDIES = (
    "orchestration/analysis/index.py",
    "orchestration/analysis/report/report_page.py",
    "orchestration/campaign/skeleton/factors.py",
    "orchestration/campaign/skeleton/text.py",
    "orchestration/cli/",
    "orchestration/exchange/containerlab/",
    "orchestration/exchange/csv_flows.py",
    "orchestration/policies/render_c.py",
    "orchestration/replay/campaign_file.py",
    "orchestration/bench/",
    "orchestration/papers/",
    "orchestration/counterfactuals/rendering.py",
)
# A command that is to be given: behind a colon or a backtick, or a text of its own.
INSTRUCTION = re.compile(r"(^|: |`)(closloop [^`;,()]*)")


def taken_apart(nodes: Collection[ast.AST]) -> list[int]:
    """Return the lines that read another object's remedy, or write a remedy's arrow."""
    docs = {id(text.value) for node in nodes for text in commands.docstring(node)}
    lines = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if node.attr == "remedy" and not own:
                lines.append(node.lineno)
        elif (
            isinstance(node, ast.Constant)
            and id(node) not in docs
            and ARROW.search(f"{node.value}")
        ):
            lines.append(node.lineno)
    return lines


def no_remedies(where):
    """Return whether a place holds help or a written page: a package's verbs are such, too."""
    return where.startswith(NO_REMEDIES) or VERBS.search(where)


def test_one_module_formats_problems():
    wrong = [
        f"{source.name}:{line}"
        for source in product()
        if source.name != FORMATTER and not source.name.startswith(ON_DEVICES)
        for line in taken_apart(source.nodes)
    ]
    assert not wrong, "pass the problem on, and let problems.py show it: " + ", ".join(wrong)


@pytest.mark.parametrize(
    "line", ['print(f"{e.message}\\n  -> {e.remedy}")', 'say("  -> do it")', "x = error.remedy"]
)
def test_the_rule_sees_what_it_forbids(line):
    assert taken_apart([*ast.walk(ast.parse(line))])


def test_the_documented_codes_are_those_that_there_are():
    page = (ROOT / "docs" / "generated" / "codes.md").read_text(encoding="utf-8")
    assert all(f"| `{code.value}` | {code.about} |" in page for code in Code)
    assert page.count("\n| `") == len(Code)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code.value) for code in Code)
    assert all(code.about.endswith(".") for code in Code)
    given = {
        node.attr
        for source in product()
        for node in source.nodes
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Code"
    }
    assert given == {code.name for code in Code}


def test_every_command_that_a_text_names_exists_with_its_options():
    found = [one for where, text in commands.texts() for one in commands.commands(where, text)]
    assert len(found) > 200


@pytest.mark.parametrize("text", ["closloop run --fsrh", "see `closloop deploy --undo`"])
def test_a_command_that_does_not_exist_is_found(text):
    with pytest.raises((KeyError, AssertionError)):
        list(commands.commands("here", text))


def test_a_command_that_is_to_be_given_is_whole():
    lacking = []
    for where, text in commands.texts():
        if no_remedies(where):
            continue
        for match in INSTRUCTION.finditer(text):
            for one in commands.commands(where, match[2]):
                asked = commands.click_command(one.verb).params
                needed = [p for p in asked if p.required and p.param_type_name == "argument"]
                needed = [p for p in needed if not p.envvar and "--help" not in one.options]
                # a text that ends with the command may go on with what is joined to it
                joined = match.end() == len(text)
                if one.arguments < len(needed) and not joined and one.form not in remedies.NOT_RUN:
                    lacking.append(f"{where}: {match[2]}")
    assert not lacking


def test_each_remedy_has_a_test_that_runs_it():
    named = {
        one.form: where
        for where, text in commands.texts()
        if not no_remedies(where)
        for one in commands.commands(where, text)
    }
    known = {**remedies.TESTS, **remedies.NOT_RUN}
    assert not {form: where for form, where in named.items() if form not in known}
    assert not set(remedies.TESTS) - set(named) - {"run --on --out"}, "no remedy names these now"
    for test in remedies.TESTS.values():
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8"), test


def test_what_is_to_be_installed_or_made_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for source in product():
        for node in source.nodes:
            calls = isinstance(node, ast.Call) and getattr(node.func, "id", "")
            extra = node.args[-1] if calls in ("needs", "not_installed") else None
            if isinstance(extra, ast.Constant):
                assert extra.value in project["optional-dependencies"], source.name
    for where, text in commands.texts():
        for extra in re.findall(r"pip install 'closloop\[(\w+)\]'", text):
            assert extra in project["optional-dependencies"], where
        for target in re.findall(r"`make ([a-z]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), where
