"""Patches of the virtual-time kernel's source, as exact replacements, and its configuration.

Precision of the clock. User-mode Linux keeps virtual time in steps of 256 ns, sets no timer less
than 500 ns ahead, and advances by 256 ns at each reading of the clock. At 100 Gbit/s a full frame
takes 123 ns: with those values a flow reached 23 Gbit/s there, and 22 instead of 23.5 at 25 Gbit/s.
Readings must cost some time, or a program that waits by reading the clock would never end. With the
patches, 64 readings without an idle time between them cost 1 ns together, so that events before an
idle time shift nothing after it. From the millionth such reading on, each costs 256 ns again, for
programs that spin longer (fio and perftest calibrate their clocks that way). Packet handling never
reads the clock so often.

Page faults. When a process first touches a page, it stops for 21 us until the kernel has mapped it;
a page that is mapped together with another takes 4 us. So the first write to a private page also
maps the other pages of the same 64 KB that are missing, or have been shared since a fork: an
interpreter writes to nearly all of its memory. (Linux does the same for files that are read,
`fault_around_bytes`.) Computing takes no virtual time, so no result changes.

Scheduler clock. User-mode Linux adds a tick to the scheduler's clock whenever a process has stopped
10,000 times while no other ran, because memory that waits for an RCU grace period would never be
freed otherwise. So the number of page faults decided when the scheduler switched tasks, and showed
in results. With the patch such a process ends a grace period instead: memory is freed, and the
scheduler's clock depends on virtual time alone.

Code model. User-mode Linux is compiled for code that may lie anywhere in memory (-mcmodel=large):
each call and each global variable takes a constant of 64 bits, and each call goes through a
register. Without modules all of the code lies below 2 GB, and the compiler's usual model works.

Random numbers. RED's draws, and the phase in which BBR begins to probe, are the only random numbers
in a guest that show in the tables. They come from a stream of their own (SplitMix64, Steele et al.,
OOPSLA 2014) whose state is a module parameter. A guest that writes the parameter before the traffic
starts repeats its trial to the bit; otherwise the state is random.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from orchestration.core.errors import NotReadyError


@dataclass(frozen=True)
class Replacement:
    """In `file`, relative to the source tree, `old` occurs once and becomes `new`."""

    file: str
    old: str
    new: str


# The sources of closloop's data path, which become the folder net/closloop of the kernel.
DATA_PATH = sorted(
    path
    for path in (Path(__file__).parents[1] / "datapath").iterdir()
    if path.suffix in (".c", ".h") or path.name == "Makefile"
)

# After this many readings of the clock without an idle moment, a reading costs 256 ns.
PATIENCE_READINGS = 1 << 20

REPLACEMENTS = (
    # Ticks of one millisecond, for TCP's timers.
    Replacement(
        "arch/um/Kconfig",
        "config HZ\n\tint\n\tdefault 100\n",
        "config HZ\n\tint\n\tdefault 1000\n",
    ),
    Replacement(
        "arch/um/include/linux/time-internal.h",
        "#define TIMER_MULTIPLIER 256\n",
        "#define TIMER_MULTIPLIER 1\n",
    ),
    Replacement(
        "arch/um/include/linux/time-internal.h",
        "#define TIMER_MIN_DELTA  500\n",
        "#define TIMER_MIN_DELTA  1\n",
    ),
    # The cost of reading the clock: see the module's docstring.
    Replacement(
        "arch/um/kernel/time.c",
        "!in_softirq() &&\n\t\t    !time_travel_ext_waiting)\n"
        "\t\t\ttime_travel_update_time_rel(TIMER_MULTIPLIER);",
        "!in_softirq() &&\n\t\t    !time_travel_ext_waiting) {\n"
        f"\t\t\tif (++clock_reads > {PATIENCE_READINGS})\n"
        "\t\t\t\ttime_travel_update_time_rel(256);\n"
        "\t\t\telse if (!(clock_reads & 63))\n"
        "\t\t\t\ttime_travel_update_time_rel(1);\n\t\t}",
    ),
    Replacement(
        "arch/um/kernel/time.c",
        "\tint cpu = raw_smp_processor_id();\n\n\tif (time_travel_mode == TT_MODE_BASIC)\n"
        "\t\tos_timer_disable(cpu);",
        "\tint cpu = raw_smp_processor_id();\n\n\tclock_reads = 0;\n"
        "\tif (time_travel_mode == TT_MODE_BASIC)\n\t\tos_timer_disable(cpu);",
    ),
    Replacement(
        "arch/um/kernel/time.c",
        "void time_travel_sleep(void)\n{",
        "static unsigned int clock_reads;\n\nvoid time_travel_sleep(void)\n{",
    ),
    # What moves virtual time inside a softirq: see datapath/engine.c.
    Replacement(
        "arch/um/kernel/time.c",
        "static void time_travel_update_time_rel(unsigned long long offs)\n{",
        "bool time_travel_jump(unsigned long long ns);\n\n"
        "/* In a softirq: move the clock to `ns` if this CPU would be idle until then. */\n"
        "bool time_travel_jump(unsigned long long ns)\n{\n"
        "\tstruct time_travel_event *first = time_travel_first_event();\n\n"
        "\tif (time_travel_mode != TT_MODE_INFCPU || !is_idle_task(current) || need_resched() ||\n"
        "\t    local_softirq_pending() || !list_empty(&time_travel_irqs) ||\n"
        "\t    (first && first->time < ns))\n\t\treturn false;\n"
        "\ttime_travel_set_time(ns);\n\treturn true;\n}\n\n"
        "static void time_travel_update_time_rel(unsigned long long offs)\n{",
    ),
    # Nothing of this kernel is loaded far from the rest: see the module's docstring.
    Replacement("arch/um/Makefile", "\tKBUILD_CFLAGS += -mcmodel=large\n", ""),
    # A process that never sleeps frees what waits for RCU: see the module's docstring.
    Replacement(
        "arch/um/os-Linux/skas/process.c",
        "extern unsigned long tt_extra_sched_jiffies;\n",
        "extern void time_travel_free_rcu(void);\n",
    ),
    Replacement(
        "arch/um/os-Linux/skas/process.c",
        "\t\t\t\ttt_extra_sched_jiffies += 1;\n",
        "\t\t\t\ttime_travel_free_rcu();\n",
    ),
    Replacement(
        "arch/um/kernel/time.c",
        "static void time_travel_set_time(unsigned long long ns)\n{",
        "void time_travel_free_rcu(void);\n\n"
        "/* On the way to a process: end RCU's grace period, and run nothing else. */\n"
        "void time_travel_free_rcu(void)\n{\n"
        "\tif (local_softirq_pending() & ~BIT(RCU_SOFTIRQ))\n\t\treturn;\n"
        "\tlocal_bh_disable();\n\trcu_softirq_qs();\n\tlocal_bh_enable();\n}\n\n"
        "static void time_travel_set_time(unsigned long long ns)\n{",
    ),
    # Writing brings the pages around: see the module's docstring.
    Replacement(
        "arch/um/kernel/trap.c",
        "/*\n * Note this is constrained to return 0, -EFAULT, -EACCES, -ENOMEM by\n"
        " * segv().\n */\n",
        "#define AROUND_BYTES (16 * PAGE_SIZE)\n\n"
        "/* Let a process that writes to a page of its own write to those around it as well. */\n"
        "static void write_around(struct mm_struct *mm, struct vm_area_struct *vma,\n"
        "\t\t\t unsigned long address)\n{\n"
        "\tunsigned long at = max(address & ~(AROUND_BYTES - 1), vma->vm_start);\n"
        "\tunsigned long end = min((address | (AROUND_BYTES - 1)) + 1, vma->vm_end);\n\n"
        "\tif (vma->vm_flags & (VM_SHARED | VM_PFNMAP | VM_MIXEDMAP))\n\t\treturn;\n"
        "\tfor (; at < end; at += PAGE_SIZE) {\n"
        "\t\tpte_t pte = *pte_offset_kernel(pmd_off(mm, at), at);\n\n"
        "\t\tif (pte_present(pte) && pte_write(pte) && pte_dirty(pte))\n\t\t\tcontinue;\n"
        "\t\tif (handle_mm_fault(vma, at, FAULT_FLAG_WRITE, NULL) &\n"
        "\t\t    (VM_FAULT_ERROR | VM_FAULT_RETRY | VM_FAULT_COMPLETED))\n\t\t\tbreak;\n"
        "\t}\n}\n\n"
        "/*\n * Note this is constrained to return 0, -EFAULT, -EACCES, -ENOMEM by\n"
        " * segv().\n */\n",
    ),
    Replacement(
        "arch/um/kernel/trap.c",
        "\terr = 0;\n\t/*\n\t * The below warning",
        "\terr = 0;\n\tif (is_write)\n\t\twrite_around(mm, vma, address);\n"
        "\t/*\n\t * The below warning",
    ),
    Replacement("net/Makefile", "obj-y\t\t\t\t+= ethernet/", "obj-y\t\t\t\t+= closloop/ ethernet/"),
    # RED's draws: see the module's docstring.
    Replacement(
        "include/net/red.h",
        "static inline u32 red_random(const struct red_parms *p)\n{\n"
        "\treturn reciprocal_divide(get_random_u32(), p->max_P_reciprocal);",
        "u32 red_draw(void);\n\nstatic inline u32 red_random(const struct red_parms *p)\n{\n"
        "\treturn reciprocal_divide(red_draw(), p->max_P_reciprocal);",
    ),
    Replacement(
        "net/sched/sch_red.c",
        "#include <net/red.h>\n",
        "#include <net/red.h>\n\n"
        "static unsigned long long red_stream;\n"
        "module_param_named(stream, red_stream, ullong, 0644);\n\n"
        "u32 red_draw(void)\n{\n\tu64 z;\n\n"
        "\tif (unlikely(!red_stream))\n\t\tred_stream = get_random_u64();\n"
        "\tz = red_stream += 0x9e3779b97f4a7c15ULL;\n"
        "\tz = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;\n"
        "\tz = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;\n"
        "\treturn (z ^ (z >> 31)) >> 32;\n}\n",
    ),
    Replacement(
        "net/ipv4/tcp_bbr.c",
        "#include <net/tcp.h>\n",
        "#include <net/tcp.h>\n\nu32 red_draw(void);\n",
    ),
    Replacement(
        "net/ipv4/tcp_bbr.c",
        "CYCLE_LEN - 1 - get_random_u32_below(bbr_cycle_rand);",
        "CYCLE_LEN - 1 - (u32)(((u64)red_draw() * bbr_cycle_rand) >> 32);",
    ),
)


def patch_tree(tree: Path) -> None:
    """Patch the source in `tree`. A symbolic link becomes a file; its target stays unchanged.

    Raises NotReadyError if the source lacks an expected text; then nothing was changed.
    """
    texts: dict[str, str] = {}
    for change in REPLACEMENTS:
        text = texts.get(change.file) or _read(tree / change.file)
        if text.count(change.old) != 1:
            raise NotReadyError(
                f"the kernel source's {change.file} is not as expected: it must contain, exactly "
                f"once,\n{change.old}",
                "build from a source of another version, and report this one",
            )
        texts[change.file] = text.replace(change.old, change.new)
    for file, text in texts.items():
        (tree / file).unlink()
        (tree / file).write_text(text)
    folder = tree / "net" / "closloop"
    folder.mkdir()
    for source in DATA_PATH:
        (folder / source.name).write_bytes(source.read_bytes())


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NotReadyError(
            f"the kernel source cannot be read: {error}", "give a complete source of Linux"
        ) from error


def mirror_tree(tree: Path, mirror: Path) -> None:
    """Make `mirror` a tree of symbolic links to the files of `tree`, which stays unchanged."""
    for folder, folders, files in os.walk(tree):
        here = mirror / Path(folder).relative_to(tree)
        here.mkdir(parents=True, exist_ok=True)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            (here / name).symlink_to(Path(folder) / name)
        folders[:] = [name for name in folders if name != ".git"]


FRAGMENT = Path(__file__).with_name("config.fragment")

_SET = re.compile(r"^(CONFIG_\w+)=(.+)$")
_UNSET = re.compile(r"^# (CONFIG_\w+) is not set$")
_OFF = "n"


def options(text: str) -> dict[str, str]:
    """Return the settings of a `.config` or a fragment, by name; `n` stands for "is not set"."""
    settings = {}
    for line in text.splitlines():
        if match := _SET.match(line.strip()):
            settings[match[1]] = match[2]
        elif match := _UNSET.match(line.strip()):
            settings[match[1]] = _OFF
    return settings


def fragment_options() -> dict[str, str]:
    """Return the options that the virtual-time kernel sets on top of `defconfig`."""
    return options(FRAGMENT.read_text())


def unmet_options(config: str) -> list[str]:
    """Return a text for each option of the fragment that differs in `config`, a full `.config`.

    An option that `config` does not name is off: Kconfig omits options that cannot be chosen.
    """
    actual = options(config)
    return [
        f"{name}={actual.get(name, _OFF)} instead of {expected}"
        for name, expected in fragment_options().items()
        if actual.get(name, _OFF) != expected
    ]


def config_hash() -> str:
    """Return a hash of the fragment's options, the source's patches and the data path."""
    lines = sorted(f"{name}={value}" for name, value in fragment_options().items())
    lines += [repr(change) for change in REPLACEMENTS]
    lines += [path.read_text() for path in DATA_PATH]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
