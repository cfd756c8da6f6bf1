"""What several trials have in common is said once."""

from orchestration.results.stamp import GroupedText, grouped_texts, in_words, where


def test_a_text_of_several_trials_is_said_once_with_their_number():
    found = {"a": ["no marks", "late"], "b": ["no marks"], "c": ["no marks"]}
    same, own = grouped_texts(found)
    assert in_words(same, 3) == "in all 3 trials: no marks"
    assert in_words(own, 3) == "in a: late"


def test_texts_that_differ_in_figures_are_told_together():
    found = {"a": ["12 packets dropped"], "b": ["1,234 packets dropped"], "c": ["12 flows failed"]}
    dropped, failed = grouped_texts(found)
    assert dropped == GroupedText("12 packets dropped", ("a",), ("b",))
    assert in_words(dropped, 3) == "in a: 12 packets dropped; likewise with other figures in b"
    assert failed.trials == ("c",)


def test_trials_are_named_until_there_are_too_many():
    names = [f"t{number}" for number in range(6)]
    assert where(names[:2], 9) == "in 2 of 9 trials (t0, t1)"
    assert where(names, 9) == "in 6 of 9 trials (t0, t1, t2, t3 and 2 more)"
    assert where(names[:1], 1) == "in the one trial"


def test_nothing_found_is_nothing_said():
    assert grouped_texts({"a": [], "b": []}) == []
