"""Tables, pictures and pages: described once, shown in a terminal, HTML, Markdown, CSV and JSON.

`table` and `page` describe; `terminal`, `html`, `markdown`, `csv` and `json` show. Text is plain
until an output escapes it, once. `numbers` makes text of numbers. Nothing else imports rich's
tables, html.escape or csv.writer for what a user reads.
"""
