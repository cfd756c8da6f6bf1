"""A warm-up counts nowhere: what is recorded in it may be anything."""

import dataclasses

import numpy as np
import pytest
from typer.testing import CliRunner

from orchestration.analysis.comparison.flows import read_flows, reduce_flows
from orchestration.analysis.comparison.ports import read_ports
from orchestration.analysis.device_metrics import measure_balance
from orchestration.analysis.flow_metrics import done_flows
from orchestration.analysis.measured_window import measured_samples, since
from orchestration.analysis.metrics import METRICS
from orchestration.analysis.port_metrics import measure_throughput
from orchestration.analysis.report.queue_figures import timeline
from orchestration.analysis.stamp import stamp
from orchestration.analysis.trial_metrics import measure, of_flows
from orchestration.campaign.expand import load_campaign
from orchestration.cli.main import app
from orchestration.core.errors import InputError
from orchestration.core.records import MISSING, Samples
from orchestration.core.signals import recorded
from orchestration.results.reader import read_trial
from orchestration.results.writer import write_trial

WARM_UP_NS = 1_000_000  # of 3 ms, sampled every 100 us
MORE = 1_000_000


@pytest.fixture
def trial_of(tmp_path, case):
    """Write a trial with a warm-up; `disturbed` is as if all had been otherwise in it.

    With `late`, flows that begin in it end otherwise even if that is after it.
    """

    def write(name, *, disturbed, warm_up_ns=WARM_UP_NS, late=True):
        trial = dataclasses.replace(case.trial, warm_up_ns=warm_up_ns)
        whole = dataclasses.replace(case, record=_with_nics(case.record))
        record = _disturbed(whole, late) if disturbed else whole.record
        verdict = stamp(trial, case.testbed, case.schedule, case.record)
        folder = tmp_path / name
        write_trial(folder, trial, case.testbed, case.schedule, record, verdict, {})
        return read_trial(folder)

    return write


def _with_nics(record):
    """Give hosts RoCE NICs: counters that grow, rates and round trips."""
    hosts = record.samples["host"]
    grows = np.cumsum(np.ones_like(hosts.tx_bytes), axis=0)
    values = {name: (grows if one.max() == MISSING else one) for name, one in hosts.values.items()}
    values["received_packets"] = 10 * grows
    samples = {**record.samples, "host": Samples(hosts.t_ns, values)}
    return dataclasses.replace(record, samples=samples)


def _disturbed(case, late):
    early, end_ns = case.schedule.start_ns < WARM_UP_NS, case.record.flows.end_ns
    if not late:
        early &= end_ns <= WARM_UP_NS
    assert 10 < np.count_nonzero(early) < len(early) - 10
    flows = dataclasses.replace(
        case.record.flows,
        end_ns=np.where(early, end_ns + MORE if late else (end_ns + WARM_UP_NS) // 2, end_ns),
        retransmits=case.record.flows.retransmits + 1_000 * early,
    )
    samples = {scope: _more(scope, one) for scope, one in case.record.samples.items()}
    return dataclasses.replace(case.record, flows=flows, samples=samples)


def _more(scope, samples):
    """Other values until the warm-up's end; counters have counted more by then, and go on."""
    within = (samples.t_ns < WARM_UP_NS)[:, None]
    values = {}
    for signal in recorded(scope):
        old = samples.values[signal.name]
        if signal.cumulative:
            values[signal.name] = np.where(old == MISSING, old, np.where(within, 7, old + MORE))
        else:
            values[signal.name] = np.where(within & (old != MISSING), MORE, old)
    return Samples(samples.t_ns, values)


def figures(result):
    """Every figure of a trial that is told anywhere, by name."""
    blocks = vars(reduce_flows(read_flows(result), result.spec.measured_ns, np.array([1e5, 1e9])))
    ports = read_ports(result)
    assert ports is not None
    line = timeline("t", result, 0, 1_000)
    found = measure(result)
    return {
        **found.scalars,
        **{f"paper {key}": value for key, value in measure_throughput(result).items()},
        **{f"balance {key}": value for key, value in measure_balance(result).items()},
        **{f"paper {key}": value for key, value in of_flows(done_flows(result)).items()},
        **{f"compared {key}": value for key, value in blocks.items()},
        **{f"compared ports {key}": value for key, value in vars(ports.blocks).items()},
        "queue_ccdf": found.queue_ccdf,
        "queue_mean_bytes": found.queue_mean_bytes,
        "timeline": line.mean_bytes,
    }


def differing(a, b):
    return {key for key in a if not np.array_equal(a[key], b[key], equal_nan=True)}


DELIVERED = {"backlog_slope_share", "delivered_load", "goodput_bps", "goodput_total_bps"}


@pytest.mark.parametrize("late", [False, True])
def test_no_figure_depends_on_what_was_recorded_in_the_warm_up(trial_of, late):
    plain, disturbed = (figures(trial_of(str(d), disturbed=d, late=late)) for d in (False, True))
    assert {metric.key for metric in METRICS.report} <= set(plain)
    # what flows that reach over the warm-up's end deliver after it depends on when they end
    assert differing(plain, disturbed) == (DELIVERED if late else set())


def test_without_a_warm_up_they_all_do(trial_of):
    """The disturbance above is one that every kind of figure would show."""
    plain, disturbed = (figures(trial_of(str(d), disturbed=d, warm_up_ns=0)) for d in (False, True))
    shown = differing(plain, disturbed)
    assert shown >= {
        "fct_mean_ns_all",
        "retransmits",
        "queue_mean_bytes",
        "marked_share",
        "utilisation_hosts",
        "dropped_packets",
        "delivered_load",
        "cnps",
        "rate_mean_bps",
        "rtt_p99_ns",
        "out_of_order_share",
        "paper fct_mean",
        "paper queue_mean",
        "balance reordered_share",
        "paper throughput",
        "compared fct_sum_ns",
        "compared ports queue_sum_bytes",
        "queue_ccdf",
        "timeline",
    }


def test_what_is_measured_is_what_came_after(trial_of, case):
    result = trial_of("trial", disturbed=False)
    flows, ports = done_flows(result), case.record.ports
    late = case.schedule.start_ns >= WARM_UP_NS
    assert flows.start_ns.tolist() == case.schedule.start_ns[late].tolist()
    inside = (ports.t_ns >= WARM_UP_NS) & (ports.t_ns <= case.trial.duration_ns)
    scalars = measure(result).scalars
    assert scalars["queue_mean_bytes"] == pytest.approx(ports.qlen_bytes[inside].mean())
    marked = ports.marked_packets[inside]
    sent = ports.tx_packets[inside]
    share = (marked[-1] - marked[0]).sum() / (sent[-1] - sent[0]).sum()
    assert scalars["marked_share"] == pytest.approx(share)
    offered = case.schedule.size_bytes[late].sum() * 8 / 2e-3 / (24 * 25e9)
    assert scalars["offered_load"] == pytest.approx(offered)


def test_counters_start_at_the_warm_ups_end_and_what_is_missing_stays_so():
    t_ns = np.array([1, 2, 3])
    read = np.array([[5, 9], [1, MISSING], [4, MISSING]])
    samples = Samples.of("queue", t_ns, *[read] * 5)
    later = since(samples, "queue", 2)
    assert later.t_ns.tolist() == [2, 3]
    assert later.tx_bytes.tolist() == [[0, -1], [3, -1]]
    assert later.qlen_bytes.tolist() == [[1, -1], [4, -1]]
    assert since(samples, "queue", 0) is samples
    assert measured_samples(samples, (2, 3)).t_ns.tolist() == [2, 3]
    assert measured_samples(samples, (2, 2)).t_ns.tolist() == [
        2,
        3,
    ]  # the drain, rather than nothing
    assert measured_samples(samples, (9, 9)).t_ns.tolist() == [1, 2, 3]


CAMPAIGN = """\
campaign: warm
testbed: graphcc
backend: fluid
tuners: [secn1]
traffic:
  - {kind: poisson, workload: WebSearch, load: 0.4}
repeats: 1
duration: 3ms
warm_up: WARM_UP
"""


@pytest.mark.slow
def test_a_campaign_with_a_warm_up_is_run_reported_and_queried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "warm.yml").write_text(CAMPAIGN.replace("WARM_UP", "1ms"))
    done = CliRunner().invoke(app, ["run", "warm.yml", "--jobs", "1", "--no-report"])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["report", "runs/warm", "--no-html", "--full"]).output
    assert "Load from 1ms to 3ms" in " ".join(shown.split())
    query = "select warm_up_ns, offered_load, delivered_load from trials"
    told = CliRunner().invoke(app, ["sql", "runs/warm", query, "--format", "json"])
    assert told.exit_code == 0, told.output
    assert '"warm_up_ns": 1000000' in told.output.replace('":1', '": 1')


def test_a_warm_up_leaves_something_to_measure(tmp_path):
    path = tmp_path / "warm.yml"
    path.write_text(CAMPAIGN.replace("WARM_UP", "2950us"))
    with pytest.raises(InputError, match=r"warm_up 2\.95ms leaves less than one sample_period"):
        load_campaign(path)
    path.write_text(CAMPAIGN.replace("WARM_UP", "2900us"))
    assert load_campaign(path).trials[0].measured_ns == (2_900_000, 3_000_000)
