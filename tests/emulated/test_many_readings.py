"""A trial keeps as many readings as it makes: a guest's memory does not end, nor its mappings."""

import numpy as np
import pytest

from orchestration.bench.outcome import run_trial
from orchestration.core.engines import PROCESS
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import TCP, HostSpec, TunerSpec
from tests.testbeds import leaf_spine
from traffic.patterns.single_flow import SingleFlowSpec

PERIOD_NS = 20_000
FABRIC = leaf_spine("thousand-ports", 20, 10, 30, "25Gbps", "100Gbps", buffer="1MB")


@pytest.mark.slow
def test_a_thousand_ports_are_read_a_thousand_times(tmp_path, engine):
    path = tmp_path / "fabric.yml"
    path.write_text(FABRIC)
    readings = 1000
    last_ns = readings * PERIOD_NS
    run = run_trial(
        str(path),
        (SingleFlowSpec("h1", "h31", 1, 0), SingleFlowSpec("h1", "h31", 1_000_000, last_ns)),
        TunerSpec("secn1"),
        duration_ns=last_ns + PERIOD_NS,
        drain_ns=10_000_000,
        sample_period_ns=PERIOD_NS,
        host=HostSpec("dcqcn", roce=RoceSpec()) if engine == PROCESS else TCP,
        engine=engine,
    )
    assert len(run.testbed.queues) == 1000
    ports = run.record.ports
    assert ports.qlen_bytes.shape[0] >= readings
    assert ports.tx_bytes[-1].sum() > 1_000_000
    hosts = run.record.hosts
    received = hosts.received_packets
    assert received.shape == (len(hosts.t_ns), 600)
    assert len(hosts.t_ns) >= readings // 10
    receiver = run.testbed.hosts.index("h31")
    assert received[-1][receiver] > 1_000_000 / 1_500
    assert np.flatnonzero(received[-1]).tolist() == [receiver]  # of data; of acknowledgements none
