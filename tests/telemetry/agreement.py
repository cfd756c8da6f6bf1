"""Whether a server has what the archive has: count and sum of every field of every trial."""

import time

import numpy as np
import pytest

from collectors.sinks.lines import MEASUREMENTS, run_tag
from orchestration.results.reader import finished_trials, read_trial


def expected(trial, measurement):
    """Return metric name -> (count, sum, what the sum may be off) of a measurement's numbers."""
    off = {}
    table = dict(trial.table(measurement.table))
    if measurement.table == "flows":
        table |= {"bytes": trial.table("schedule")["bytes"]}
        # Of flows that start in one ms the server keeps one: leave the incasts out.
        chosen = trial.table("schedule")["class"] != "incast"
        table = {name: values[chosen] for name, values in table.items()}
    if measurement.table == "ports":
        # A rack is read once more when all is over: of two readings in one ms it keeps either.
        chosen = ~_followed_within_a_ms(trial, table)
        twice = len(chosen) - int(np.sum(chosen))
        assert twice <= len(trial.testbed.queues)
        table = {name: values[chosen] for name, values in table.items()}
        off["t_ns"] = twice * 1_000_000
    found = {}
    for name, kind in measurement.fields.items():
        if name == "row" or kind not in ("int", "int?", "float"):
            continue
        values = table[name]
        if kind == "int?":
            values = values[values != -1]
        if len(values):
            sums = (len(values), float(np.sum(values)), off.get(name, 0))
            found[f"{measurement.name}_{name}"] = sums
    return found


def _followed_within_a_ms(trial, ports):
    """Say of which rows the next one is of the same queue, and of the same ms of the wall clock."""
    time_ms = (int(trial.facts["started_ns"]) + ports["t_ns"]) // 1_000_000
    same = time_ms[1:] == time_ms[:-1]
    for name in ("device", "port", "queue"):
        same &= ports[name][1:] == ports[name][:-1]
    return np.append(same, False)


def agree(server, campaign, trials):
    folders = finished_trials(campaign)
    assert len(folders) == trials
    for folder in folders:
        trial = read_trial(folder)
        run = run_tag(int(trial.facts["started_ns"]))
        wanted = {}
        for measurement in MEASUREMENTS.values():
            if measurement.table and measurement.table != "events":
                wanted |= expected(trial, measurement)
        assert len(wanted) > 20

        def stored(run=run, trial=trial, wanted=wanted):
            series = server.export(trial=trial.spec.id, run=run)
            return {
                name: (
                    sum(len(one["values"]) for one in series.get(name, []) if _counts(one)),
                    float(sum(sum(one["values"]) for one in series.get(name, []) if _counts(one))),
                )
                for name in wanted
            }

        # What has just been written takes a moment to be seen.
        end = time.monotonic() + 60
        found = stored()
        while _counted(found) != _counted(wanted) and time.monotonic() < end:
            time.sleep(0.2)
            found = stored()
        for name, (count, total, off) in wanted.items():
            assert found[name][0] == count, name
            assert found[name][1] == pytest.approx(total, rel=1e-12, abs=off), name
        [complete] = server.export(trial=trial.spec.id, run=run)["closloop_trial_rows_ports"]
        assert complete["values"] == [len(trial.table("ports")["t_ns"])]


def _counted(figures):
    return {name: count for name, (count, *_) in figures.items()}


def _counts(series):
    return series["metric"].get("class") != "incast"
