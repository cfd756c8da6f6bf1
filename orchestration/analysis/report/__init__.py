"""A campaign's report: its figures with their data, the page, CSV files and PDF.

`report_tables` has the tables, `report_page` the whole page, `output` writes it.
Must not import: orchestration.run, orchestration.backends, orchestration.cli.
"""

__all__ = ["output", "report_page", "report_tables"]
