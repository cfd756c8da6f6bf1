"""Problems as people and programs see them."""

import json
import pickle
import sys

import pytest

from orchestration.cli import terminal
from orchestration.cli.main import main
from orchestration.cli.verbs import load, verbs
from orchestration.core.errors import InputError, NotReadyError, TrialError, check_known
from orchestration.core.problems import Code, Problem, in_words
from orchestration.device.errors import DeviceGone


def with_json():
    """Yield every verb that has --json, sub-verbs included, as its words."""
    todo = [((verb.name,), load(verb.name)) for verb in verbs().values()]
    while todo:
        words, command = todo.pop()
        todo += [((*words, name), one) for name, one in getattr(command, "commands", {}).items()]
        if any("--json" in one.opts for one in command.params):
            yield words


def ends(monkeypatch, capsys, *words):
    """Return the exit code and the outputs of a command line."""
    monkeypatch.setattr(sys, "argv", ["closloop", *words])
    monkeypatch.setattr(terminal, "printed", set())
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize("words", list(with_json()), ids=" ".join)
def test_a_wrong_option_is_a_problem_in_json(monkeypatch, capsys, words):
    code, out, err = ends(monkeypatch, capsys, *words, "--json", "--no-such-option")
    told = json.loads(out)
    (problem,) = told["problems"]
    assert (code, told["exit_code"], problem["code"]) == (2, 2, "usage")
    assert "--no-such-option" in problem["what"] or "Missing argument" in problem["what"]
    assert problem["remedy"] == f"closloop {' '.join(words)} --help"
    assert problem["what"] in err


def test_bad_input_is_every_problem_in_json(monkeypatch, capsys, tmp_path):
    file = tmp_path / "bad.yml"
    file.write_text("campaign: bad\ntestbed: grafcc\ntuners: [secn1]\nlod: 1\n")
    code, out, err = ends(monkeypatch, capsys, "plan", str(file), "--json")
    told = json.loads(out)["problems"]
    assert code == 2
    assert {(one["where"], one["code"]) for one in told} >= {(f"{file}:4", "unknown-field")}
    assert all(one["what"] in err for one in told)


def test_long_lines_are_wrapped_and_nothing_is_cut():
    words = [f"word{number}" for number in range(60)]
    path = "/a/path/" + "that-is-much-longer-than-the-terminal-is-wide/" * 3
    text = in_words([Problem("file.yml:3", " ".join(words), f"see {path} and {words[0]}")], 60)
    assert text.split() == ["file.yml:3:", *words, "->", "see", path, "and", "word0"]
    assert all(len(line) <= 60 or path in line for line in text.splitlines())


def test_problems_beyond_a_cap_are_counted_and_alike_ones_are_gathered():
    alike = [Problem(f"runs/t{number}/flows", "is cut", "copy it") for number in range(9)]
    text = in_words(alike)
    assert text.count("is cut") == 5
    assert "(and 4 more like it)" in text
    assert text.count("copy it") == 1
    others = [Problem(f"a:{number}", f"fault {number}") for number in range(70)]
    assert in_words(others).splitlines()[-1] == "and 20 more problems: correct these first"


@pytest.mark.parametrize(
    "error",
    [
        InputError.single("a.yml:1", "what", "remedy"),
        InputError(Problem("a.yml:1", what) for what in ("one", "two")),
        NotReadyError("what", "remedy", Code.IN_USE),
        TrialError("what", "remedy", "console"),
        DeviceGone("leaf1", "what", "remedy"),
    ],
)
def test_an_error_comes_whole_out_of_another_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_every_unknown_name_is_said():
    with pytest.raises(InputError) as caught:
        check_known("--limit", "no host {!r}", ["h1", "g1", "g2"], ["h1", "h2"], "it has ")
    assert [problem.what for problem in caught.value.problems] == ["no host 'g1'", "no host 'g2'"]
    assert caught.value.problems[0].code is Code.UNKNOWN_NAME
