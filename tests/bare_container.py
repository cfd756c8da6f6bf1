"""Runs a program as in a container that grants nothing: python tests/bare_container.py PROGRAM ...

It has no capabilities, also as root, and cannot get any. Namespaces, anonymous files in memory
(memfd), mounts, BPF programs and virtual machines (/dev/kvm) are refused, as by the seccomp profile
of Docker, or as on kernels without them. The program and its children cannot undo this: seccomp(2).

Only for x86-64 and the modules of the standard library: the numbers are those of that machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # _REFUSE and the error's number
_LAST_CAPABILITY = 63
_CLONE_NEW = 0x7E020080  # all namespaces of clone(2)
_KVM_CREATE_VM = 0xAE01
# Calls that are refused, and the error. Without clone3, the C library takes clone.
_REFUSED = {
    "unshare": (272, errno.EPERM),
    "setns": (308, errno.EPERM),
    "mount": (165, errno.EPERM),
    "pivot_root": (155, errno.EPERM),
    "ptrace": (101, errno.EPERM),
    "bpf": (321, errno.EPERM),
    "memfd_create": (319, errno.ENOSYS),
    "clone3": (435, errno.ENOSYS),
}
_CLONE, _IOCTL = 56, 16
# Where struct seccomp_data has the number of the call, the architecture, the first arguments.
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06


def _filter() -> bytes:
    """Return the program of classic BPF: struct sock_filter's, of 8 bytes each."""

    def step(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, k)

    steps = [step(_LOAD, _ARCH), step(_EQUAL, _ARCHITECTURE, 1, 0), step(_RETURN, _KILL)]
    steps.append(step(_LOAD, _NUMBER))
    for number, error in _REFUSED.values():
        steps += [step(_EQUAL, number, 0, 1), step(_RETURN, _REFUSE | error)]
    for number, argument, test, value in (
        (_CLONE, _FIRST, _ANY_BIT, _CLONE_NEW),
        (_IOCTL, _SECOND, _EQUAL, _KVM_CREATE_VM),
    ):
        steps += [step(_EQUAL, number, 0, 4), step(_LOAD, argument), step(test, value, 0, 1)]
        steps += [step(_RETURN, _REFUSE | errno.EPERM), step(_RETURN, _ALLOW)]
    return b"".join([*steps, step(_RETURN, _ALLOW)])


def enter() -> None:
    """Give up everything that such a container lacks. Raises OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, *arguments: object) -> None:
        if libc.prctl(option, *arguments, *([ctypes.c_ulong(0)] * (4 - len(arguments)))):
            number = ctypes.get_errno()
            raise OSError(number, f"prctl {option}: {os.strerror(number)}")

    if os.geteuid() == 0:
        for capability in range(_LAST_CAPABILITY + 1):
            try:
                prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability))
            except OSError:
                break  # the kernel has no more
    prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))
    program = _filter()
    code = ctypes.create_string_buffer(program, len(program))
    about = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    )
    prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), about)


if __name__ == "__main__":
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])
