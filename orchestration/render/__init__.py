"""Tables, figures and pages: described once, shown in a terminal, HTML, Markdown, CSV and JSON.

`table`, `scorecard` and `page` describe; `terminal`, `html`, `markdown`, `csv` and `json` show.
Text is plain until an output escapes it, once. `numbers` makes text of numbers.
Must not import: inventory, collectors, orchestration.results, orchestration.analysis.
"""

__all__ = [
    "csv",
    "figure",
    "figure_style",
    "heat_map",
    "html",
    "json",
    "markdown",
    "numbers",
    "page",
    "scorecard",
    "table",
    "terminal",
]
