"""Names and what users read have the field's words: see `vocabulary`, and docs/glossary.md."""

import ast
import re

import pytest
import vocabulary

# Data keys and wire names that older files have: they change with a version only.
KEPT_NAMES: dict[str, set[str]] = {
    "inventory/ansible_schema.py": {"corridor"},
    "orchestration/agent/sonic/configdb.py": {"found"},
    "orchestration/bench/sequential.py": {"any_look"},
}
# The texts of the kernel's patches are C, and another text would make another kernel.
KEPT_TEXTS = {"orchestration/kernel/patches.py"}


def test_names_are_the_fields_words():
    words = [
        word
        for word in vocabulary.of_names(vocabulary.product())
        if word.text not in KEPT_NAMES.get(word.file, ())
    ]
    assert not words, "\n".join(map(str, words))


def test_texts_are_the_fields_words():
    words = [
        word
        for word in vocabulary.of_texts([*vocabulary.product(), *vocabulary.pages()])
        if word.file not in KEPT_TEXTS
    ]
    assert not words, "\n".join(map(str, words))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("most_bytes", "max"),
        ("_LEAST_SHARE", "min"),
        ("repeats_told", "message"),
        ("FoundLooks", "interim analyses"),
        ("place_of", "cell key"),
        ("at_most", None),
        ("replaced", None),
        ("untold", None),
        ("outlook", None),
    ],
)
def test_a_private_name_is_found_with_what_to_write(name, instead):
    found = vocabulary.instead_of(name)
    assert found is None if instead is None else instead in found


def test_names_are_found_wherever_a_source_gives_one():
    source = "import a as said\nclass Told:\n    place: int\ndef f(looks, *, told): self.lent = g\n"
    names = [name for _, name, _ in vocabulary.names(ast.walk(ast.parse(source)))]
    assert {"said", "Told", "place", "looks", "told", "lent"} <= set(names)


def test_a_private_text_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("All is well.\nTwo checkpoints take turns.\n")
    (word,) = vocabulary.of_texts([tmp_path / "a.md"])
    assert re.search(r"a\.md:2: .*write in rotation", str(word))
