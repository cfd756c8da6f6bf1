"""Congestion controls as BPF programs: compiles, reads and loads them, and explains refusals.

A policy is a NIC's congestion control as a program. Its source ends with the macro CL_POLICY of
policy.h, which puts the program into the section "policy" and two numbers into "about": how many
parameters it takes, and whether its packets ask for telemetry.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectors.bpf.compile import compiled
from orchestration.agent.bpf.elf import INSTRUCTION_BYTES, ObjectError, read_program, read_section
from orchestration.agent.bpf.load import SYSCALL, LoadError, load
from orchestration.core.errors import ClosloopError, NotReadyError
from orchestration.core.problems import Code

ATTACH = "/proc/closloop/policy"
HEADERS = Path(__file__).parents[2] / "orchestration" / "datapath"
MAX_PARAMETERS = 24  # CL_MOST_PARAMETERS
_CALL, _LOAD_64 = 0x85, 0x18
# The last flag keeps the compiler from turning loops into calls, such as a copy into memmove.
_FLAGS = (f"-I{HEADERS}", "-Wno-unused-parameter", "-fno-tree-loop-distribute-patterns")
# struct cl_context of policy.h: what the kernel passes to a policy.
CONTEXT = np.dtype(
    [
        *((name, np.uint64) for name in ("now_ns", "rate_bps", "line_bps", "rtt_ns")),
        *((name, np.uint32) for name in ("event", "bytes")),
        *((name, np.uint64) for name in ("sent_bytes", "acked_bytes")),
        *((name, np.uint32) for name in ("window_bytes", "payload_bytes", "switches", "hops")),
        ("own", np.uint64, 24),
        ("parameters", np.uint32, MAX_PARAMETERS),
        ("hop", np.uint32, (8, 5)),
    ]
)


class PolicyError(ClosloopError):
    """The file is not a policy, or the kernel's verifier refuses it."""

    code = Code.POLICY_REFUSED


@dataclass(frozen=True)
class Policy:
    """A program's instructions, how many parameters it takes, and whether it asks for telemetry."""

    code: bytes
    parameters: int
    telemetry: bool


def policy_object(path: Path) -> Path:
    """Return the path of a policy's object file, after compiling it if `path` is C.

    Raises PolicyError if it is not a valid policy, and NotReadyError without a compiler.
    """
    if not path.is_file():
        raise PolicyError("there is no such file", "give the path of a .c or .o file")
    object_file = path
    if path.suffix == ".c":
        try:
            object_file = compiled(path, _FLAGS, *sorted(HEADERS.glob("*.h")))
        except NotReadyError as error:
            if "does not compile" in error.message:
                errors = [line for line in error.message.splitlines() if "error:" in line]
                message = errors[0].partition("error: ")[2] if errors else error.message
                raise PolicyError(
                    f"the compiler refuses it: {message}", "correct it: see docs/policies.md"
                ) from error
            raise
    read_policy(object_file)
    return object_file


def read_policy(path: Path) -> Policy:
    """Return the policy in an object file. Raises PolicyError if it is not a valid policy."""
    data = path.read_bytes()
    try:
        program = read_program(data, "policy")
        parameters, telemetry = struct.unpack("<2I", read_section(data, "about"))
    except (ObjectError, struct.error) as error:
        raise PolicyError(
            f"it is not a policy: {error}",
            "end its source with CL_POLICY(name, parameters, telemetry) of policy.h, keep its "
            "state in flow->own, and make its functions CL_INLINE",
        ) from error
    if program.data_bytes:
        raise PolicyError(
            "it has global variables, which all flows would share",
            "keep its state in flow->own",
        )
    offset = 0
    while offset < len(program.code):
        if program.code[offset] == _CALL:
            raise PolicyError(
                f"it calls a function (instruction {offset // INSTRUCTION_BYTES})",
                "a policy may not call functions: make its own CL_INLINE, and use no BPF helpers",
            )
        offset += INSTRUCTION_BYTES * (2 if program.code[offset] == _LOAD_64 else 1)
    if parameters > MAX_PARAMETERS:
        raise PolicyError(
            f"it takes {parameters} parameters, but at most {MAX_PARAMETERS} are possible",
            "correct its CL_POLICY",
        )
    return Policy(program.code, parameters, bool(telemetry))


def attach(path: Path) -> int:
    """Load a policy into this kernel and pass it to the NICs; return its file descriptor.

    The verifier or the NICs find faults of the policy, such as endless loops and accesses past its
    state. A division by 0 is not a fault: in BPF its result is 0. Raises PolicyError.
    """
    policy = read_policy(path)
    try:
        program = load(policy.code, b"policy", SYSCALL)
    except LoadError as error:
        what, remedy = _explained(error.log_lines or (str(error),))
        raise PolicyError(f"the kernel refuses policy {path.name}: {what}", remedy) from error
    try:
        fd = os.open(ATTACH, os.O_WRONLY)
        try:
            os.write(fd, struct.pack("=2I", program, policy.telemetry))
        finally:
            os.close(fd)
    except OSError as error:
        what, remedy = _OUT_OF_BOUNDS if error.errno == errno.ERANGE else (str(error), _SEE_DOCS)
        raise PolicyError(f"the kernel refuses policy {path.name}: {what}", remedy) from error
    return program


_SEE_DOCS = "see docs/policies.md for what a policy may do"
_OUT_OF_BOUNDS = (
    "it reads or writes past its state",
    "flow->own has CL_OWN_WORDS words, parameters CL_MOST_PARAMETERS, hop CL_MOST_HOPS records",
)
# Patterns of the verifier's messages, with what they mean and the remedy; the first match is used.
_EXPLANATIONS = (
    (
        r"infinite loop|too complex|back-edge|too large",
        "it may loop without an end",
        "bound its loops by a constant, or put CL_ROUND_OR(label) into them",
    ),
    (
        r"fp pointer|stack",
        "it reads or writes past its local variables, or has more than 512 bytes of them",
        "index arrays within their length; keep large ones in flow->own",
    ),
    (r"unbounded memory|(min|max) value is|context access|outside of the", *_OUT_OF_BOUNDS),
    (
        r"invalid mem access|invalid dereference",
        "it uses a number as an address",
        "read and write only flow, parameters and hop",
    ),
    (r"zero", "it divides by the constant 0", "divide by something else"),
    (r"!read_ok", "it reads a variable before it has a value", "give it one"),
)


def _explained(messages: tuple[str, ...]) -> tuple[str, str]:
    """Return in plain words, with the message, what the verifier has found, and the remedy."""
    lines = [line.strip(" |^-") for line in messages if "update:" not in line]
    for pattern, what, remedy in _EXPLANATIONS:
        for line in lines:
            if re.search(pattern, line):
                return f"{what} (the verifier says: {line})", remedy
    return f"the verifier says: {'; '.join(lines[-6:])}", _SEE_DOCS
