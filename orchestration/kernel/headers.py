"""Headers that nearly all of the kernel's files include, read once: that is half of a build.

gcc takes a precompiled header only as the first thing of a file, and not if a macro that it names
has another value. So a script between make and gcc puts it first, and the macros with a file's own
name after it. What gcc does not take that way, or does not compile, is compiled as ever.

Code is the same, except that the compiler may put instructions that do not depend on each other in
another order (docs/decisions/0104-a-kernel-in-three-minutes.md).
"""

from __future__ import annotations

from pathlib import Path

# The file with which make is to begin: before it, the script precompiles the headers.
FIRST = "kernel/exit.o"

_HEADERS = (
    *("linux/kconfig.h", "linux/compiler_types.h", "linux/module.h", "linux/kernel.h"),
    *("linux/slab.h", "linux/fs.h", "linux/mm.h", "linux/sched.h", "linux/interrupt.h"),
    *("linux/netdevice.h", "linux/skbuff.h", "net/sock.h", "net/ip.h", "linux/bpf.h"),
    *("linux/cgroup.h", "linux/proc_fs.h", "linux/seq_file.h", "linux/uaccess.h"),
)

SCRIPT = Path(__file__).with_name("headers.sh")


def compiler(folder: Path) -> Path:
    """Write the script, with what it needs, into a new folder; it stands in gcc's place."""
    (folder / "macros").mkdir(parents=True)
    (folder / "headers.h").write_text("".join(f"#include <{name}>\n" for name in _HEADERS))
    script = folder / "gcc"
    script.write_text(SCRIPT.read_text())
    script.chmod(0o755)
    return script
