"""Queries over many run folders at once, as SQL and as data frames.

from orchestration.results.sql import sql, table

table("runs", "flows").pl()                                   # polars
table("runs", "ports").filter("qlen_bytes > 100_000").df()    # pandas
sql("runs", "select tuner, count(*) from trials group by all").df()

Must not import: orchestration.analysis, orchestration.campaign, orchestration.run.
"""

from orchestration.results.sql.database import Runs, sql, table

__all__ = ["Runs", "database", "output", "sql", "table"]
