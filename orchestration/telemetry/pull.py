"""Rebuilds run folders from InfluxDB, and checks that nothing is missing of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.sinks.influx import InfluxConnection, Server
from collectors.sinks.names import TRIAL
from orchestration.artifacts.reader import finished_trials
from orchestration.model.errors import InputError, TrialError
from orchestration.runner.folder import JOURNAL_FILE
from orchestration.runner.journal import Journal
from orchestration.telemetry.flux import StoredTrial, query, rows_of
from orchestration.telemetry.rebuild import Incomplete, rebuild

Say = Callable[[str, str], None]
_PULLED = "pulled"


@dataclass
class Pulled:
    """What came of it, trials by their ids: `broken` are not whole in the database."""

    folder: Path
    rebuilt: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def pull(
    campaign: str,
    out: Path,
    server: Server,
    only: Sequence[str] = (),
    *,
    say: Say,
    progress: Callable[[str], None] = lambda text: None,
) -> Pulled:
    """Write `out/<campaign>/` from what the server has; trials that are there already stay.

    Of a trial that was run several times, the last whole run is taken. Raises InputError if the
    server knows no such campaign or trial, TrialError if it does not answer.
    """
    connection = InfluxConnection(server)
    try:
        stored = stored_trials(connection, campaign)
        wanted = {name: one for name, one in stored.items() if not only or name in only}
        unknown = [name for name in only if name not in stored]
        if unknown or not wanted:
            what = f"trial {unknown[0]!r} of campaign" if unknown else "campaign"
            known = f"trials there: {', '.join(sorted(stored))}" if stored else ""
            raise InputError.single(
                "pull",
                f"there is no {what} {campaign!r} in {server}",
                known or "give the name as in the campaign file; closloop push sends a run",
            )
        pulled = Pulled(out / campaign)
        there = {folder.name for folder in finished_trials(pulled.folder)}
        for name, trial in sorted(wanted.items()):
            if name in there:
                pulled.present.append(name)
                continue
            progress(name)
            try:
                rebuild(connection, trial, pulled.folder)
                pulled.rebuilt.append(name)
            except Incomplete as error:
                pulled.broken.append(name)
                say(f"{name}: {error}", "closloop push --again, where its archive is")
        if pulled.rebuilt:
            _note(pulled, server)
        return pulled
    finally:
        connection.close()


def stored_trials(connection: InfluxConnection, campaign: str) -> dict[str, StoredTrial]:
    """Return the trials of a campaign that are in the database as a whole, by id."""
    found: dict[str, StoredTrial] = {}
    flux = query(connection.server.bucket, TRIAL, {"campaign": campaign})
    for row in rows_of(connection.query(flux)):
        fields = {name: row.get(name, "") for name in TRIAL.fields}
        try:
            rows = {
                name.removeprefix("rows_"): int(value)
                for name, value in fields.items()
                if name.startswith("rows_")
            }
            one = StoredTrial(
                campaign=row["campaign"],
                trial=row["trial"],
                run=row["run"],
                started_ns=int(fields["started_ns"]),
                rows=rows,
                parts=int(fields["parts"]),
            )
        except (KeyError, ValueError) as error:
            raise TrialError(
                f"{connection.server} has a {TRIAL.name} that closloop did not write: {error}",
                "choose the bucket that closloop push wrote to",
            ) from error
        known = found.get(one.trial)
        if known is None or known.started_ns < one.started_ns:
            found[one.trial] = one
    return found


def _note(pulled: Pulled, server: Server) -> None:
    """Begin the campaign's journal, so that the folder can be run on."""
    journal = Journal(pulled.folder / JOURNAL_FILE)
    try:
        journal.add(_PULLED, url=server.url, bucket=server.bucket, trials=pulled.rebuilt)
    finally:
        journal.close()
