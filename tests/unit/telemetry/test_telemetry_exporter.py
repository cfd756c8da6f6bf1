"""The exporter's text is what the journal, the snapshots and the tables say."""

import socket
import urllib.request

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError, NotReadyError
from orchestration.results.reader import finished_trials, read_trial
from orchestration.run.launcher import run_campaign
from orchestration.telemetry.exporter import metrics_text, serve
from tests.trials import incast_campaign

CAMPAIGN = incast_campaign("scraped", "secn1, amt", 1, more="")


class Silent:
    def __getattr__(self, name):
        return lambda *words: None


class Scraping(Silent):
    """Takes the metrics when a trial has just been started."""

    def __init__(self, folder):
        self.folder, self.texts = folder, []

    def progressed(self, trial, progress):
        self.texts.append(metrics_text(self.folder))


@pytest.fixture
def run(tmp_path):
    file = tmp_path / "scraped.yml"
    file.write_text(CAMPAIGN)
    run_campaign(load_campaign(file), FluidBackend(), tmp_path / "runs", 1, Silent())
    return tmp_path / "runs" / "scraped"


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found, name, **labels):
    return found[name, *sorted(labels.items())]


def test_a_finished_run_is_what_its_tables_say(run):
    found = samples(metrics_text(run))
    assert value(found, "closloop_run_active", campaign="scraped") == 0
    for state, count in {"planned": 2, "done": 2, "running": 0, "failed": 0}.items():
        assert value(found, "closloop_run_trials", campaign="scraped", state=state) == count
    for folder in finished_trials(run):
        trial = read_trial(folder)
        tuner = trial.spec.tuner.name
        labels = {"trial": trial.spec.id, "tuner": tuner, "arm": tuner, "testbed": "rlcc-7"}
        assert value(found, "closloop_trial_valid", **labels) == trial.stamp.valid
        flows = trial.table("flows")
        done = flows["status"] == "done"
        assert value(found, "closloop_trial_flows", status="done", **labels) == done.sum()
        slowdown = flows["fct_ns"][done] / flows["ideal_ns"][done]
        p99 = value(found, "closloop_trial_slowdown", quantile="0.99", **labels)
        assert p99 == pytest.approx(np.quantile(slowdown, 0.99))


def test_the_queues_of_the_trial_that_ended_last_are_its_last_readings(run):
    found = samples(metrics_text(run))
    last = max(finished_trials(run), key=lambda folder: folder.stat().st_mtime)
    trial = read_trial(last)
    for number, queue in enumerate(trial.testbed.queues):
        place = {"trial": trial.spec.id, "device": queue.device, "port": queue.name, "queue": "0"}
        for name in ("tx_bytes", "tx_packets", "marked_packets", "dropped_packets"):
            expected = getattr(trial.ports, name)[-1, number]
            assert value(found, f"closloop_queue_{name}_total", **place) == expected


@pytest.mark.slow
def test_a_trial_that_runs_shows_its_snapshots(tmp_path, monkeypatch):
    monkeypatch.setattr("collectors.snapshot.EVERY_S", 0.0)
    monkeypatch.setattr("orchestration.run.worker._PROGRESS_EVERY_S", 0.0)
    file = tmp_path / "scraped.yml"
    file.write_text(CAMPAIGN.replace("duration: 1ms", "duration: 20ms"))
    listener = Scraping(tmp_path / "runs" / "scraped")
    run_campaign(load_campaign(file), FluidBackend(), tmp_path / "runs", 1, listener)
    running = [
        found
        for text in listener.texts
        if value(found := samples(text), "closloop_run_active", campaign="scraped") == 1
        and any(key[0] == "closloop_queue_kmax_bytes" for key in found)
    ]
    assert running
    assert any(key[0] == "closloop_running_trial_seconds" for key in running[-1])
    sent = [
        sum(v for key, v in found.items() if key[0] == "closloop_queue_tx_bytes_total")
        for found in running
    ]
    assert sent[-1] > 0


def test_a_damaged_trial_leaves_the_others(run):
    broken, whole = finished_trials(run)
    (broken / "flows.parquet").write_bytes(b"no parquet")
    found = samples(metrics_text(run))
    trials = {dict(key[1:])["trial"] for key in found if key[0] == "closloop_trial_valid"}
    assert trials == {whole.name}


@pytest.mark.slow
def test_it_is_served_and_a_taken_port_is_said(run):
    with serve(run, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert samples(answer.read().decode()) == samples(metrics_text(run))
        with (
            pytest.raises(NotReadyError, match="cannot be listened on") as caught,
            serve(run, "127.0.0.1", port),
        ):
            pass
        assert "--port" in caught.value.remedy
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(InputError):
        metrics_text(tmp_path)
