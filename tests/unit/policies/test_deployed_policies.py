"""The store of deployed policies: versioned, atomic, reversible, and named by campaigns."""

import json
import os
import stat

import pytest

from orchestration.campaign.hosts import Host
from orchestration.core.errors import InputError, NotReadyError
from orchestration.policies.compile import deploy, model_of
from orchestration.policies.store import DeployedPolicy, deployed_names, program_path
from tests.unit.compiled_policies import RECORDED, recorded

SOURCE = """
#include "policy.h"

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	flow->rate_bps = p[0] * %dULL;
}

CL_POLICY(mine, 1, 0);
"""


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def written(tmp_path, number):
    path = tmp_path / "mine.c"
    path.write_text(SOURCE % number)
    return path


def refuses(_):
    raise InputError.single("mine.o", "the kernel refuses it", "correct it")


def accepts(_):
    pass


def test_versions_come_into_force_and_go_back_in_turn(tmp_path):
    policy = DeployedPolicy("edge")
    for number in (1, 2, 1, 3):
        deploy(written(tmp_path, number), "edge", accepts)
    # what was there already is the version that it was
    assert [version.number for version in policy.versions()] == [1, 2, 3]
    assert policy.current().number == 3
    assert program_path("", "deployed:edge").read_text() == SOURCE % 3
    assert program_path("", "deployed:edge@2").read_text() == SOURCE % 2
    assert [policy.undo() and policy.current().number for _ in range(3)] == [1, 2, 1]
    assert policy.undo() is None
    assert deployed_names() == []
    with pytest.raises(InputError, match="no deployment to undo"):
        policy.undo()
    lines = (tmp_path / "state/closloop/policies/edge/ledger.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(item["before"], item["after"]) for item in entries] == [
        *((0, 1), (1, 2), (2, 1), (1, 3)),
        *((3, 1), (1, 2), (2, 1), (1, 0)),
    ]


def test_what_is_refused_leaves_the_former_version_in_force(tmp_path):
    deploy(written(tmp_path, 1), "edge", accepts)
    calls = tmp_path / "calls.c"
    calls.write_text("int main(void) { return 0; }")
    bad = tmp_path / "model.json"
    bad.write_text("{}")
    for source, check in ((written(tmp_path, 2), refuses), (calls, accepts), (bad, accepts)):
        with pytest.raises(InputError):
            deploy(source, "edge", check)
    assert [version.number for version in DeployedPolicy("edge").versions()] == [1]
    assert program_path("", "deployed:edge").read_text() == SOURCE % 1


def test_a_write_that_fails_leaves_the_former_version_in_force(tmp_path, monkeypatch):
    deploy(written(tmp_path, 1), "edge", accepts)
    from orchestration.policies import store

    write = store.write_whole

    def full(path, *args):
        if os.fspath(path).endswith("current"):
            raise OSError(28, "No space left on device")
        write(path, *args)

    monkeypatch.setattr(store, "write_whole", full)
    with pytest.raises(NotReadyError, match="no space left"):
        deploy(written(tmp_path, 2), "edge", accepts)
    assert DeployedPolicy("edge").current().number == 1


def test_a_model_is_compiled_and_a_campaign_names_it(tmp_path):
    made = deploy(RECORDED, "learned", accepts)
    assert model_of(made) == recorded().hash
    assert stat.S_ISREG(made.path.stat().st_mode)
    spec = Host.model_validate(
        {"congestion_control": {"program": "deployed:learned", "parameters": [64, 1500, 0, 4]}}
    ).roce.spec("program", str(tmp_path), 25 * 10**9)
    assert spec.program == str(made.path)
    assert dict(spec.values) == {"00": 64, "01": 1500, "02": 0, "03": 4}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deployed:egde", "did you mean 'edge'"),
        ("deployed:edge@7", "it has the versions 1"),
        ("deployed:../edge", "no name of a policy"),
    ],
)
def test_a_campaign_that_names_what_is_not_there_is_refused(tmp_path, name, words):
    deploy(written(tmp_path, 1), "edge", accepts)
    with pytest.raises(InputError, match=words):
        program_path("", name)
