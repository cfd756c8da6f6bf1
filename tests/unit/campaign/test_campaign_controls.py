"""Congestion controls of RoCE NICs in a campaign file: parameters, programs, refusals."""

import pytest

from collectors.bpf import compile as compiler
from collectors.bpf.policy import PolicyError, policy_object, read_policy
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError
from orchestration.core.trial import TrialSpec
from orchestration.replay.campaign_file import _roce

CAMPAIGN = """
campaign: own
testbed: graphcc
fabric: closloop
duration: 1ms
traffic:
  - {{kind: flow, src: h1, dst: h2, size: 1MB, start: 0ms}}
tuners: [{{name: secn1}}]
host: {host}
"""
POLICY = """
#include "policy.h"

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
        %s
}

CL_POLICY(mine, 2, 1);
"""


def campaign_file(tmp_path, host):
    path = tmp_path / "campaign.yml"
    path.write_text(CAMPAIGN.format(host=host))
    return path


def roce_of(tmp_path, host):
    (trial,) = load_campaign(campaign_file(tmp_path, host), repeats=1).trials
    assert TrialSpec.from_json(trial.to_json()) == trial
    return trial.host.roce


def refused(tmp_path, host):
    with pytest.raises(InputError) as caught:
        roce_of(tmp_path, host)
    return str(caught.value)


def test_parameters_have_the_papers_names_and_units(tmp_path):
    own = "{congestion_control: swift, roce: {swift: {base_target: 30us, beta: 0.5, max_cwnd: 50}}}"
    roce = roce_of(tmp_path, own)
    assert roce.values == (("base_target", 30_000), ("beta", 500), ("max_cwnd", 50_000))
    values = list(roce.control_values.values())
    # in the order of the C source: ai, beta, max_mdf, base_target
    assert values[:4] == [1_000, 500, 500, 30_000]
    # it acts on each acknowledgement, unless told otherwise
    assert roce.ack_every == 1
    assert _roce(roce)["swift"] == {"base_target": "30000ns", "beta": 0.5, "max_cwnd": 50.0}
    roce = roce_of(tmp_path, "{congestion_control: hpcc, roce: {ack_every: 4, hpcc: {w_ai: 1KB}}}")
    assert (roce.ack_every, roce.values) == (4, (("w_ai", 1_000),))
    assert roce.telemetry_bytes == 42
    roce = roce_of(tmp_path, "{congestion_control: fixed, roce: {fixed: {rate: 3Gbps}}}")
    assert (roce.ack_every, roce.values) == (16, (("rate", 3_000),))


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (
            "{congestion_control: swift, roce: {swift: {bta: 0.5}}}",
            ("no parameter 'bta'", "did you mean 'beta'"),
        ),
        ("{congestion_control: swift, roce: {swift: {beta: 1.5}}}", ("not from 0.001 to 1.0",)),
        ("{congestion_control: swift, roce: {swift: {beta: 0.12345}}}", ("three decimals",)),
        ("{congestion_control: swift, roce: {swift: {beta: 5us}}}", ("not a number", "0.8")),
        ("{congestion_control: timely, roce: {timely: {t_low: 600us}}}", ("not below t_high",)),
        (
            "{congestion_control: timely, roce: {timely: {t_low: 50}}}",
            ("50 is not a duration", "like 25us"),
        ),
        ("{congestion_control: hpcc, roce: {swift: {beta: 0.5}}}", ("is hpcc, not swift",)),
        ("{congestion_control: fixed, roce: {fixed: {rate: 1500bps}}}", ("whole number of Mbit",)),
        ("{congestion_control: program}", ("needs the program's file", "program: my_policy.c")),
        ("{congestion_control: {program: none.c}}", ("no such file",)),
        ("{congestion_control: {program: a.c, parameters: [-1]}}", ("whole numbers", "-1")),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(tmp_path, host, words):
    said = refused(tmp_path, host)
    assert all(word in said for word in words), said


def test_hpcc_needs_links_that_its_telemetry_can_name(tmp_path):
    path = tmp_path / "odd.yml"
    path.write_text(
        "{kind: single-switch, name: odd, mtu: 1500B, buffer: 1MB, hosts: 3, "
        "host_link: {rate: 33Gbps, delay: 1us}}"
    )
    file = tmp_path / "campaign.yml"
    file.write_text(
        CAMPAIGN.format(host="{congestion_control: hpcc}").replace("graphcc", str(path))
    )
    with pytest.raises(InputError, match="no number for a link of 33000 Mbit/s"):
        load_campaign(file)


@pytest.mark.skipif(not compiler.shutil.which(compiler.COMPILER), reason="no bpf-gcc")
def test_a_program_is_compiled_and_read_and_named_in_the_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.c").write_text(POLICY % "flow->rate_bps = p[1];")
    roce = roce_of(tmp_path, "{congestion_control: {program: mine.c, parameters: [3, 4]}}")
    assert roce.program == str(tmp_path / "mine.c")
    assert roce.telemetry_bytes == 42
    assert list(roce.control_values.values()) == [3, 4]
    made = policy_object(tmp_path / "mine.c")
    assert made.name.startswith("mine-")
    assert read_policy(made).parameters == 2
    assert read_policy(made).telemetry
    # a loop that copies becomes no call of memmove
    (tmp_path / "mine.c").write_text(
        POLICY % "for (u32 i = 7; i > 1; i--) flow->own[i] = flow->own[i - 2];"
    )
    policy_object(tmp_path / "mine.c")
    # an object is taken as it is, but not in ns-3
    assert policy_object(made) == made
    host = f"{{congestion_control: {{program: {made}, parameters: [3, 4]}}}}"
    with pytest.raises(InputError, match="no policy in a BPF object like"):
        load_campaign(campaign_file(tmp_path, host), backend="simulated")
    assert "takes 2 parameters, and 1 are given" in refused(
        tmp_path, "{congestion_control: {program: mine.c, parameters: [3]}}"
    )
    for body, reason in (
        ("flow->rate_bps = ((u64 (*)(void))5)();", "it calls a function"),
        ("static u64 shared; flow->rate_bps = shared += flow->bytes;", "global variables"),
        ("flow->rate_bps = flow->own[200];", "array subscript 200 is above array bounds"),
    ):
        (tmp_path / "mine.c").write_text(POLICY % body)
        with pytest.raises(PolicyError, match=reason):
            policy_object(tmp_path / "mine.c")
    (tmp_path / "mine.o").write_bytes(b"no object")
    assert "not a policy" in refused(tmp_path, "{congestion_control: {program: mine.o}}")
