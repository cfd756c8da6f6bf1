"""The files of a run folder: written, read back, and queried with SQL (`sql`).

`tables` are the tables' schemas, `writer` writes one trial, `reader` reads run folders, `stamp` is
a trial's verdict, `interim_analyses` the record of adaptive repeats.
Must not import: orchestration.backends, orchestration.campaign, orchestration.analysis.
"""

__all__ = ["interim_analyses", "question", "reader", "sql", "stamp", "tables", "writer"]
