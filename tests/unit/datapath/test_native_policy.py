"""A policy of the user's own, compiled for this machine: what it sees, and how it fails."""

import faulthandler
import multiprocessing
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from orchestration import datapath
from orchestration.core.errors import InputError
from orchestration.datapath import native_policy as module
from orchestration.datapath.library import load_engine
from orchestration.datapath.native_policy import native_policy, runs_natively
from tests.unit.policy_library import ACK, CNP, START, TX, Flow, Hop, Policy, compiled

HEAD = '#include "policy.h"\n'
HAPPEN = "CL_INLINE void happen(struct cl_flow_state *flow, const u32 *parameters, "
HAPPEN += "const struct cl_hop *hop)\n"
DOCS = Path(__file__).parents[3] / "docs" / "policies.md"
LINE_BPS = 100_000_000_000


@pytest.fixture
def write(engine, monkeypatch, tmp_path):
    """Return a function that writes a policy whose `happen` is this text; it returns the path."""
    monkeypatch.setattr(module, "_loaded", {})

    def write(body, end="CL_POLICY(mine, 2, 1);"):
        path = tmp_path / "mine.c"
        path.write_text(f"{HEAD}{HAPPEN}{{\n{body}\n}}\n{end}\n")
        return path

    return write


def flow_under(path, numbers):
    """Return a flow under a policy's file, and what `native_policy` returns."""
    policy = native_policy(path)
    address = int(load_engine().ffi.cast("uintptr_t", policy.policy))
    return Flow(Policy.from_address(address), numbers), policy


def test_the_pages_example_runs(write, tmp_path):
    (tmp_path / "docs.c").write_text(DOCS.read_text().split("```c\n")[1].split("```")[0])
    flow, policy = flow_under(tmp_path / "docs.c", [40])
    assert (policy.parameters, policy.asks_telemetry) == (1, False)
    assert flow.tell(START, 0) == LINE_BPS
    assert flow.tell(CNP, 10) == LINE_BPS // 2
    assert flow.tell(ACK, 20) == LINE_BPS // 2 + 40_000_000


def test_it_is_the_policy_that_its_source_is(write, tmp_path):
    source = Path(datapath.__file__).with_name("policy_timely.c")
    built_in = compiled("timely", tmp_path)
    numbers = [1_000, *range(1, built_in.parameters)]
    flow, policy = flow_under(source, numbers)
    assert policy.parameters == built_in.parameters
    twin = Flow(built_in, numbers)
    for step in range(200):
        seen = {"rtt_ns": 20_000 + 977 * step % 31_000, "size_bytes": 1_000}
        event = (TX, ACK, CNP)[step % 3] if step else START
        assert flow.tell(event, step * 5_000, **seen) == twin.tell(event, step * 5_000, **seen)
    assert list(flow.state.own) == list(twin.state.own)


def test_only_its_answers_come_back(write):
    path = write(
        "flow->rate_bps = parameters[1] + hop[1].queue_bytes; flow->window_bytes = 7;"
        "flow->own[23] += 5; flow->line_bps = 1; flow->now_ns = 1;"
        "((u32 *)parameters)[1] = 9; ((struct cl_hop *)hop)[1].queue_bytes = 0;"
    )
    flow, policy = flow_under(path, [1, 2_000_000])
    assert policy.asks_telemetry
    hops = [Hop(), Hop(queue_bytes=3)]
    assert [flow.tell(ACK, 50, hops=hops) for _ in range(2)] == [2_000_003] * 2
    state = flow.state
    assert (state.window_bytes, state.own[23], state.line_bps, state.now_ns) == (
        7,
        10,
        LINE_BPS,
        50,
    )


def test_a_loop_ends(write):
    path = write("for (;;) { flow->own[0]++; CL_ROUND_OR(out); }\nout: flow->rate_bps = 5;")
    flow, _ = flow_under(path, [0, 0])
    assert [flow.tell(ACK, 0) for _ in range(2)] == [5, 5]
    assert flow.state.own[0] == 2 * ((8 << 20) + 1)


def exit_code_of(crash):
    """Run a function in a process of its own; return the process's exit code."""

    def run():
        faulthandler.disable()  # pytest's, which prints where Python was
        crash()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize(
    ("body", "number", "message"),
    [
        ("flow->rate_bps /= parameters[0];", signal.SIGFPE, "the policy divides by 0"),
        (
            "flow->rate_bps = hop[parameters[1]].at_ns;",
            signal.SIGSEGV,
            "the policy reads or writes past its state",
        ),
    ],
)
def test_a_fault_says_what_it_was_before_the_process_dies(write, capfd, body, number, message):
    flow, _ = flow_under(write(body), [0, 8])
    assert exit_code_of(lambda: flow.tell(ACK, 0)) == -number
    assert capfd.readouterr().err.startswith(message)


def test_a_fault_that_is_not_the_policys_is_not_said_to_be(write, capfd):
    flow, _ = flow_under(write("flow->rate_bps = 1;"), [0, 0])

    def crash():
        flow.tell(ACK, 0)
        for _ in range(20):  # each policy of this process has put itself before the last one
            signal.raise_signal(signal.SIGSEGV)

    assert exit_code_of(crash) == -signal.SIGSEGV
    assert "policy reads" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("body", "end", "reason"),
    [
        ("flow->rat_bps = 1;", "CL_POLICY(mine, 1, 0);", "has no member named"),
        ("flow->rate_bps = 1;", "CL_POLICY(mine, 25, 0);", "at most 24 parameters"),
    ],
)
def test_what_does_not_compile_is_explained(write, body, end, reason):
    path = write(body, end)
    with pytest.raises(InputError, match=f"the compiler refuses it: .*{reason}") as caught:
        native_policy(path)
    assert caught.value.problems[0].where == str(path)
    assert "docs/policies.md" in caught.value.remedy


@pytest.mark.parametrize(
    ("body", "end", "reason"),
    [
        ("flow->rate_bps = 1;", "", "cl_own_policy"),
        ("extern u64 rate(void); flow->rate_bps = rate();", "CL_POLICY(mine, 1, 0);", "rate"),
    ],
)
def test_a_source_that_is_no_policy_is_explained(write, body, end, reason):
    with pytest.raises(
        InputError, match=f"it is not a policy: .*undefined symbol: {reason}"
    ) as caught:
        native_policy(write(body, end))
    assert "CL_POLICY" in caught.value.remedy


def test_a_library_runs_if_it_was_compiled_for_this_version(write, tmp_path):
    write("flow->rate_bps = 3;")
    library = tmp_path / "mine.so"
    shutil.copy(module._compiled(tmp_path / "mine.c", print), library)
    flow, policy = flow_under(library, [0, 0])
    assert flow.tell(ACK, 0) == 3
    assert policy.parameters == 2
    other = tmp_path / "other.so"
    source = "unsigned cl_own_abi[2] = {9, 8}; int cl_own_policy[6];"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", other]
    subprocess.run(command, input=source.encode(), check=True)
    with pytest.raises(
        InputError, match=r"compiled for version 9 .* 8 bytes .* version 1, with 264"
    ):
        native_policy(other)
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(InputError, match="it is not a policy"):
        native_policy(text)


def test_a_bpf_object_does_not_run_natively(tmp_path):
    path = tmp_path / "mine.bpf.o"
    path.touch()
    assert not runs_natively(path)
    assert runs_natively(tmp_path / "mine.c")
    with pytest.raises(InputError, match="cannot run a BPF object") as caught:
        native_policy(path)
    assert "--in kernel" in caught.value.remedy
