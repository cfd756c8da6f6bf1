"""The data path's C files call and include each other one way: no circle of files.

A file here is a C source with the header of the same name. One uses another if it includes its
header, or if the body of a function, the initial value of a variable or a macro has the name of a
function or a variable that the other one alone defines. A bare declaration uses nothing.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import pytest
from graphs import circles

ORCHESTRATION = Path(__file__).resolve().parents[2] / "orchestration"

_NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_TYPE = re.compile(r"\b(?:struct|enum|union)\s+\w+(?:\s*\{[^{}]*\})?")
_ATTRIBUTE = re.compile(r"\b__\w+\b(?:\s*\(\([^()]*\)\))?")
# A name that is a member of something is none of another file.
_USED = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")


def data_path() -> Path:
    """Return the folder of the data path's C files, wherever in `orchestration` it is."""
    (engine,) = ORCHESTRATION.rglob("engine.c")
    return engine.parent


def top_level(code: str) -> Iterator[tuple[str, str]]:
    """Yield each declaration and definition at a file's top level: what it begins with, its body.

    `code` has no comments, strings and directives. The body is the code in braces or the initial
    value, "" of a bare declaration.
    """
    depth, begin, body = 0, 0, None
    for mark in re.finditer(r"[(){}=;]", code):
        at, char = mark.start(), mark[0]
        ends = char == ";" and not depth
        if char in "={" and not depth and body is None:
            body = at
        depth += (char in "({") - (char in ")}")
        if char == "}" and not depth:
            # a function ends with its body; a type and a variable with a semicolon
            ends = code[begin:body].rstrip().endswith(")")
        if ends:
            yield code[begin : at if body is None else body], code[body : at + 1] if body else ""
            begin, body = at + 1, None


def defined_name(head: str, body: str) -> str | None:
    """Return the name that a top-level definition gives to other files, None if it gives none."""
    words = head.split()
    if not words or words[0] in ("static", "extern", "typedef") or "CL_INLINE" in words:
        return None
    if words[-1].endswith(")"):
        name = re.search(r"(\w+)\s*\(", head)
        return name[1] if name and body and len(words) > 1 else None
    plain = _ATTRIBUTE.sub("", _TYPE.sub("int", head)).strip()
    name = re.fullmatch(r"[\w\s*]*[\s*](\w+)\s*(?:\[[^]]*\]\s*)*", plain)
    return name[1] if name else None


def read_folder(folder: Path) -> tuple[dict[str, set[str]], dict[str, set[str]], dict[str, str]]:
    """Return what the files include, the names they use, and the file that defines each name."""
    includes, uses = defaultdict(set), defaultdict(set)
    definers: dict[str, set[str]] = defaultdict(set)
    files = {path.name: path for path in folder.iterdir() if path.suffix in (".c", ".h")}
    for path in files.values():
        text = path.read_text()
        named = _INCLUDE.findall(text)
        includes[path.stem] |= {Path(name).stem for name in named if name in files}
        code = _NOISE.sub(" ", text)
        for directive in _DIRECTIVE.findall(code):
            uses[path.stem] |= set(_USED.findall(_TYPE.sub(" ", directive)))
        for head, body in top_level(_DIRECTIVE.sub("", code)):
            uses[path.stem] |= set(_USED.findall(re.sub(r"\b(struct|enum|union)\s+\w+", " ", body)))
            if name := defined_name(head, body):
                definers[name].add(path.stem)
    owner = {name: next(iter(files)) for name, files in definers.items() if len(files) == 1}
    return includes, uses, owner


def arrows(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return, for each file, the files that it uses and the names that it takes from each."""
    includes, uses, owner = read_folder(folder)
    names: dict[str, dict[str, set[str]]] = {}
    for file in includes:
        names[file] = {other: {f"{other}.h"} for other in includes[file] - {file}}
        for name in uses[file] & owner.keys():
            if owner[name] != file:
                names[file].setdefault(owner[name], set()).add(name)
    return names


def circle_steps(folder: Path) -> list[str]:
    """Return a shortest circle for each set of files that use each other: `file -> file: names`."""
    used = arrows(folder)
    loops = circles({file: set(others) for file, others in used.items()})
    steps = [step for loop in loops for step in pairwise(loop)]
    return [f"{one} -> {other}: {', '.join(sorted(used[one][other]))}" for one, other in steps]


def test_no_files_of_the_data_path_use_each_other_in_a_circle():
    steps = circle_steps(data_path())
    assert not steps, "an arrow runs back up:\n" + "\n".join(steps)


def test_data_path_h_lists_each_file_below_those_that_it_uses():
    folder = data_path()
    comment = _NOISE.findall((folder / "data_path.h").read_text())[1]
    listed = re.findall(r"([\w*]+)\.[ch]\b", comment)
    used = arrows(folder)
    rows = {
        file: [row for row, name in enumerate(listed) if fnmatch(file, name)]
        for file in used.keys() - {"data_path"}
    }
    assert {file: row for file, row in rows.items() if len(row) != 1} == {}
    pairs = [(one, other) for one in rows for other in used[one] if other in rows]
    assert [f"{one} -> {other}" for one, other in pairs if rows[one] < rows[other]] == []
    assert len(pairs) > 60


def test_the_data_path_is_read():
    used = arrows(data_path())
    assert len(used) > 30
    assert {"cl_schedule", "cl_cancel"} <= used["port"]["engine"]
    assert "cl_port_settle" in used["queues"]["port"]


LOW = """
#include "bell.h"
#define RING 1 /* cl_door */
static void ring(struct cl_door *door) { door->cl_open = RING; }
void cl_bell(struct cl_door *door, u32 times)
{
	for (u32 i = 0; i < times; i++)
		ring(door); // cl_door_open(door);
	printk("cl_door_open");
}
"""
HIGH = """
#include "door.h"
#include "bell.h"
u32 cl_doors[4] = { 1 };
void cl_door_open(struct cl_door *door)
{
	cl_bell(door, 2);
}
"""


@pytest.mark.parametrize(
    ("back", "names"),
    [
        ("void cl_back(void)\n{\n\tcl_door_open(NULL);\n}", "cl_door_open"),
        ("void (*cl_back)(struct cl_door *door) = cl_door_open;", "cl_door_open"),
        ("#define BACK() \\\n\tcl_door_open(NULL)", "cl_door_open"),
        ("u32 cl_back(void)\n{\n\treturn cl_doors[0];\n}", "cl_doors"),
        ('#include "door.h"', "door.h"),
    ],
    ids=["a call", "its address", "a macro", "a variable", "an include"],
)
def test_a_circle_is_found(back, names, tmp_path):
    (tmp_path / "bell.c").write_text(LOW)
    (tmp_path / "bell.h").write_text("void cl_bell(struct cl_door *door, u32 times);\n")
    (tmp_path / "door.c").write_text(HIGH)
    # what a header of the ground declares, it does not use
    (tmp_path / "door.h").write_text(
        "extern u32 cl_doors[4];\nvoid cl_door_open(struct cl_door *);\n"
    )
    assert circle_steps(tmp_path) == []
    (tmp_path / "bell.c").write_text(f"{LOW}{back}\n")
    assert sorted(circle_steps(tmp_path)) == [
        f"bell -> door: {names}",
        "door -> bell: bell.h, cl_bell",
    ]


def test_a_circle_through_a_third_file_is_found(tmp_path):
    for name, used in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.c").write_text(f"void cl_{name}(void)\n{{\n\tcl_{used}();\n}}\n")
    assert sorted(circle_steps(tmp_path)) == ["a -> b: cl_b", "b -> c: cl_c", "c -> a: cl_a"]
