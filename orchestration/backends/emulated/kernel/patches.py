"""What the virtual-time kernel's source is changed in, as exact replacements.

User-mode Linux keeps virtual time in steps of 256 ns, lets no timer be less than 500 ns ahead, and
charges 256 ns for each reading of the clock. At 100 Gbit/s a full frame takes 123 ns: with those
values a flow got 23 Gbit/s there, and 22 instead of 23.5 at 25 Gbit/s. The clock charge exists so
that a program that waits by reading the clock gets on at all; here it is 1 ns for 64 readings.
A program that spins for longer (fio and perftest calibrate their clocks so) pays 256 ns again, from
the millionth reading on that nothing has slept between: no packet's handling reads it so often.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orchestration.model.errors import NotReadyError


@dataclass(frozen=True)
class Replacement:
    """In `file`, relative to the source tree, `old` stands once and becomes `new`."""

    file: str
    old: str
    new: str


# Readings of the clock, with nothing asleep between, after which a reading costs 256 ns.
PATIENCE_READINGS = 1 << 20

REPLACEMENTS = (
    # Ticks of a millisecond, for TCP's timers.
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
    # A reading of the clock: see above.
    Replacement(
        "arch/um/kernel/time.c",
        "!in_softirq() &&\n\t\t    !time_travel_ext_waiting)\n"
        "\t\t\ttime_travel_update_time_rel(TIMER_MULTIPLIER);",
        "!in_softirq() &&\n\t\t    !time_travel_ext_waiting) {\n"
        f"\t\t\tif (++clock_reads_awake > {PATIENCE_READINGS})\n"
        "\t\t\t\ttime_travel_update_time_rel(256);\n"
        "\t\t\telse if (!(++clock_reads & 63))\n"
        "\t\t\t\ttime_travel_update_time_rel(1);\n\t\t}",
    ),
    Replacement(
        "arch/um/kernel/time.c",
        "\tint cpu = raw_smp_processor_id();\n\n\tif (time_travel_mode == TT_MODE_BASIC)\n"
        "\t\tos_timer_disable(cpu);",
        "\tint cpu = raw_smp_processor_id();\n\n\tclock_reads_awake = 0;\n"
        "\tif (time_travel_mode == TT_MODE_BASIC)\n\t\tos_timer_disable(cpu);",
    ),
    Replacement(
        "arch/um/kernel/time.c",
        "void time_travel_sleep(void)\n{",
        "static unsigned int clock_reads, clock_reads_awake;\n\nvoid time_travel_sleep(void)\n{",
    ),
)


def patch_tree(tree: Path) -> None:
    """Change the source in `tree`; a file that is a link is replaced, what it points to is not.

    Raises:
        NotReadyError: the source does not have the expected text; nothing was changed.
    """
    texts: dict[str, str] = {}
    for change in REPLACEMENTS:
        text = texts.get(change.file) or _read(tree / change.file)
        if text.count(change.old) != 1:
            raise NotReadyError(
                f"the kernel source's {change.file} is not as expected: it must contain once\n"
                f"{change.old}",
                "build from a source of another version, or report this one",
            )
        texts[change.file] = text.replace(change.old, change.new)
    for file, text in texts.items():
        (tree / file).unlink()
        (tree / file).write_text(text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NotReadyError(
            f"the kernel source cannot be read: {error}", "give a complete source of Linux"
        ) from error


def mirror_tree(tree: Path, mirror: Path) -> None:
    """Make `mirror` a tree of symbolic links to the files of `tree`, which stays as it is."""
    for folder, folders, files in os.walk(tree):
        here = mirror / Path(folder).relative_to(tree)
        here.mkdir(parents=True, exist_ok=True)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            (here / name).symlink_to(Path(folder) / name)
        folders[:] = [name for name in folders if name != ".git"]
