"""The page of benchmarks: what was run takes the place of its former section, the rest stays."""

from orchestration.bench.outcome import Figure, Outcome, as_markdown


def test_a_section_is_replaced_and_others_stay():
    page = as_markdown([("a", Outcome("A", (Figure("x", "1"),))), ("b", Outcome("B", ()))])
    again = as_markdown([("a", Outcome("A anew", (Figure("x", "2", "2", True),)))], page)
    assert again.count("## ") == 2
    assert "| x | 2 | 2 | ok |" in again
    assert "| x | 1 |" not in again
    assert again.index("A anew") < again.index("## B")
    assert as_markdown([], again) == again


def test_a_picture_stands_on_the_page_as_mermaid_draws_it_and_goes_with_its_section():
    page = as_markdown(
        [("a", Outcome("A", (Figure("x", "1"),), picture="xychart-beta\n    bar [1]"))]
    )
    assert "| x | 1 | | |\n\n```mermaid\nxychart-beta\n    bar [1]\n```\n" in page
    assert "mermaid" not in as_markdown([("a", Outcome("A", ()))], page)
