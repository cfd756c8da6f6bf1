"""The text of a first campaign with its comments, and of the lossless testbed that RoCE needs."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from inventory.variant import split_name
from inventory.yamltree import flow
from orchestration.campaign.skeleton.arms import (
    DCQCN,
    DCTCP,
    Arm,
    ChosenArms,
    Comparison,
    Incast,
)
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_size

REPEATS = 6
_WIDTH = 100
_DIGITS = 6


@dataclass(frozen=True)
class SkeletonSpec:
    """Everything that is written into a first campaign.

    `file` is as commands name it, `testbed` as the campaign names it. With `like`, `testbed` is a
    second file that makes the testbed `like` lossless; `fabric` is the testbed that was asked for.
    It is `settled` if nearly all of the load can be delivered in these times.
    """

    name: str
    file: str
    testbed: str
    like: str
    fabric: Testbed
    comparison: Comparison
    chosen: ChosenArms
    workload: str
    load: float
    incast: Incast | None
    warm_up_ns: int
    duration_ns: int
    drain_ns: int
    settled: bool = True

    @property
    def shown(self) -> str:
        """The testbed as an argument of a command, which sees `file` by the same path."""
        is_path = self.testbed.startswith((".", "/"))
        return str(Path(self.file).parent / self.testbed) if is_path else self.testbed

    @property
    def command(self) -> str:
        """The campaign file as an argument in a shell."""
        return shlex.quote(self.file)


def campaign_text(spec: SkeletonSpec) -> str:
    """Return the campaign file's text."""
    parts = [_head(spec), _fabric(spec), _arms(spec), _traffic(spec), _times(spec)]
    return "\n\n".join("\n".join(part) for part in (*parts, _next(spec))) + "\n"


def lossless_text(testbed: Testbed, like: str) -> str:
    """Return a testbed file that extends the testbed `like` with PFC and a shared buffer.

    Of several traffic classes the first becomes that of RoCE. `like` is its name, or its path as
    seen from the file.
    """
    classes = [klass.name for klass in testbed.classes]
    lines = [
        f"# {testbed.name} with lossless switches, for RoCE NICs: made by `closloop init`.",
        *like_lines(like),
        f"name: {lossless_name(testbed)}",
        f"description: {testbed.name} with PFC",
        "# The ports of a switch share its buffer. Priority flow control stops a sender before it",
        "# overflows; a queue may take alpha times the buffer that is free.",
    ]
    lines.append(f"switch: {lossless_switch(testbed)}")
    if not classes:
        return "\n".join(lines) + "\n"
    first = classes[0]
    lines.append("classes:")
    for klass in testbed.classes:
        control = DCQCN if klass.name == first else klass.congestion_control
        lines.append(
            f"  - {{name: {klass.name}, weight: {klass.weight}, congestion_control: {control}}}"
        )
    return "\n".join(lines) + "\n"


def like_lines(name: str) -> list[str]:
    """Return the lines of a testbed's file that make it like another, with its own fields."""
    base, fields = split_name(name)
    own = YAML(typ="safe").load(fields) if fields else {}
    return [f"like: {base}", *(f"{key}: {flow(value)}" for key, value in own.items())]


def testbed_value(name: str, *more: str) -> str:
    """Return a campaign's field `testbed`: a name, or a mapping if it has fields of its own.

    `more` has further fields, as YAML.
    """
    base, fields = split_name(name)
    own = [fields[1:-1]] if fields else []
    return f"{{{', '.join([f'like: {base}', *own, *more])}}}" if own or more else base


def lossless_switch(testbed: Testbed) -> str:
    """Return the field `switch` of a testbed's lossless version."""
    alpha, lossless = "1/8", "3"
    if classes := [klass.name for klass in testbed.classes]:
        lossless, *others = classes
        alpha = f"{{{', '.join([f'{lossless}: 1/8', *(f'{name}: 1' for name in others)])}}}"
    return f"{{buffer: {format_size(shared_bytes(testbed), 4)}, alpha: {alpha}, pfc: [{lossless}]}}"


def shared_bytes(testbed: Testbed) -> int:
    """Return the buffer that a lossless switch shares among its ports: that of its two largest."""
    return 2 * max(port.buffer_bytes for port in testbed.switch_ports)


def lossless_name(testbed: Testbed) -> str:
    """Return the name of a testbed's lossless version."""
    return f"{testbed.name}-pfc"


def _head(spec: SkeletonSpec) -> Iterator[str]:
    incasts = ", with incasts on top" if spec.incast else ""
    yield from comment(
        f"{spec.comparison.question} {spec.workload} at "
        f"{spec.load:.0%} load{incasts}, on {spec.fabric.description or spec.fabric.name}. "
        "Made by `closloop init`, and yours to edit."
    )
    yield "#"
    yield from commands(spec)
    yield "#"
    yield from comment(
        "A field that does not exist, or a value without its unit, is refused with its line. "
        "docs/generated/campaign-file.md has all fields."
    )
    yield with_comment(f"campaign: {flow(spec.name)}", f"results go to runs/{spec.name}")


def commands(spec: SkeletonSpec) -> Iterator[str]:
    """Yield comments with the commands that take the file."""
    shown = (
        (f"closloop plan {spec.command}", "what would run, and how long it takes"),
        (f"closloop run {spec.command}", "run it; the same command goes on after Ctrl-C"),
        (f"closloop report runs/{spec.name}", "the answer, and a page that opens offline"),
    )
    room = max(len(command) for command, _ in shown)
    for command, what in shown:
        yield f"#   {command:<{room}}   {what}"


def _fabric(spec: SkeletonSpec) -> Iterator[str]:
    yield from comment(
        f"The fabric. `closloop inventory show {shlex.quote(spec.shown)}` draws it, `closloop "
        "inventory list` has others; a file of your own is named by its path."
    )
    yield f"testbed: {testbed_value(spec.testbed)}"
    if spec.comparison.transport == DCTCP:
        yield from comment(
            "Where it runs: Linux in virtual time. `closloop run --on fluid --out first-look` "
            "gives a first look in seconds, `--on simulated` is ns-3, `--on hardware` a rack."
        )
    else:
        yield from comment(
            "Where it runs: RoCE NICs and switches in virtual time. `closloop run --on simulated` "
            "is ns-3, `--on hardware` a rack."
        )
    yield "backend: emulated"
    if spec.fabric.classes:
        names = ", ".join(klass.name for klass in spec.fabric.classes)
        yield from comment(
            f"Each of the fabric's traffic classes ({names}) has a transport of its own. Flows "
            "are of the first, unless their pattern says `class`."
        )
    elif spec.comparison.transport == DCTCP:
        yield from comment("The hosts' TCP. Others: cubic, reno, bbr (docs/campaign.md, host).")
        yield f"host: {{congestion_control: {DCTCP}}}"
    else:
        yield from comment(
            "The hosts' NICs: RoCE under DCQCN, with the parameters that NICs have (mlx5; others: "
            "paper, hpcc). Other congestion controls of NICs are swift, timely, hpcc, rlcc."
        )
        yield f"host: {{congestion_control: {DCQCN}, roce: {{dcqcn: mlx5}}}}"
    if spec.comparison.several_paths:
        yield from comment(
            "After an idle time in a flow, switches choose its path again. Each tuner sets how "
            "long that time is."
        )
        yield "load_balancing: {kind: flowlets, timeout: 200us}"


def _arms(spec: SkeletonSpec) -> Iterator[str]:
    yield from comment(
        "What is compared. In each repeat all get the same flows, so that differences are paired. "
        "A fair set has a published setting, a rule that learns nothing, a learned tuner and its "
        "placebo, which acts at random: only what is better than the placebo was learned."
    )
    yield "tuners:"
    room = max(len(arm.entry) for arm in spec.chosen.arms)
    for arm in spec.chosen.arms:
        yield from _listed(arm, room)
    for name in spec.chosen.without:
        yield from comment(
            f"{name} has no packaged network for this. To train one: closloop train {name} --help, "
            f"then {{name: {name}, checkpoint: FILE.safetensors}}",
            indent=2,
        )
    if spec.chosen.others:
        yield "  # further arms; remove the # to include one:"
        for arm in spec.chosen.others:
            yield from _item(arm.entry, "  # ")
    if spec.comparison.several_paths:
        yield from comment(
            f"best-static, the arm to beat: closloop search {spec.command} --over timeouts, then",
            indent=2,
        )
        kind = "timeout"
    else:
        yield from comment(
            f"best-static, the arm to beat: closloop search {spec.command}, then", indent=2
        )
        kind = "static"
    yield f"  # - {{name: {kind}, label: best-static, from: search-results/{spec.name}.yml}}"


def _listed(arm: Arm, room: int) -> Iterator[str]:
    line = f"  - {arm.entry:<{room}}   # {arm.comment}"
    if len(line) > _WIDTH:
        yield from comment(arm.comment, indent=2)
        yield from _item(arm.entry, "  ")
    else:
        yield line


def _item(entry: str, indent: str) -> Iterator[str]:
    """Yield an item of a list, on several lines if it is too long for one."""
    yield from textwrap.wrap(
        entry,
        _WIDTH,
        initial_indent=f"{indent}- ",
        subsequent_indent=f"{indent}   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _traffic(spec: SkeletonSpec) -> Iterator[str]:
    yield from comment(
        "What is sent: flows between random hosts, with sizes of a published distribution "
        "(`closloop traffic list`). The load is a share of the hosts' line rate."
    )
    if spec.incast:
        yield from comment(
            f"Incasts are added: {spec.incast.fan_in} hosts send to one at the same moment, again "
            "and again. Other kinds: all-to-all, message-mix, concurrent, flow, replay."
        )
    yield "traffic:"
    yield from patterns(spec)
    if not spec.incast:
        yield "  # - {kind: incast, fan_in: 16, size: 128KB, period: 2ms}"


def patterns(spec: SkeletonSpec) -> Iterator[str]:
    """Yield the items of the list `traffic`."""
    yield f"  - {{kind: poisson, workload: {spec.workload}, load: {spec.load:g}}}"
    if spec.incast:
        size = format_size(spec.incast.size_bytes, 3)
        period = format_duration(spec.incast.period_ns, _DIGITS)
        yield (
            f"  - {{kind: incast, fan_in: {spec.incast.fan_in}, size: {size}, period: {period}}}"
        )


def _times(spec: SkeletonSpec) -> Iterator[str]:
    yield from comment(
        f"How often. Each repeat has its own flows, the same for all tuners. {REPEATS} pairs are "
        "the fewest whose signs alone can show a difference at 5 % (2 / 2^6 = 0.03). Four times as "
        "many repeats halve an interval; if you raise this number, finished trials are kept."
    )
    yield f"repeats: {REPEATS}"
    yield with_comment("seed: 1", "decides every random draw: one seed is one result")
    yield from comment(
        "How long, in the trial's own time. The fabric is empty at first, so flows that start in "
        "the warm-up are sent but not counted. Flows start until `duration`, and then have the "
        "time `drain` to end; a trial ends when all have ended. `closloop plan` says how much of "
        "the load can be delivered within the measured time."
    )
    if not spec.settled:
        yield from comment(
            f"{spec.workload}'s largest flows last much longer than that: `closloop plan` says "
            "which times would be enough, and which load can be delivered in these."
        )
    yield f"warm_up: {format_duration(spec.warm_up_ns, _DIGITS)}"
    yield f"duration: {format_duration(spec.duration_ns, _DIGITS)}"
    yield f"drain: {format_duration(spec.drain_ns, _DIGITS)}"
    period = "500us" if spec.comparison.several_paths else "100us"
    yield with_comment(f"sample_period: {period}", "how often queues are read and tuners act")


def _next(spec: SkeletonSpec) -> Iterator[str]:
    yield "# What to change next, one thing at a time:"
    yield "# - to see how results depend on load: `load: $load` in the traffic above, and"
    lower, higher = spec.load / 2, min(0.9, spec.load * 4 / 3)
    yield f"#     factors: {{load: [{lower:.2g}, {spec.load:.2g}, {higher:.2g}]}}"
    yield "# - as many repeats as a precise result needs, instead of a number:"
    yield f"#     repeats: {{until: 3%, of: [slowdown_mean], min: {REPEATS}, max: 40}}"
    switches = [link for link in spec.fabric.links if _between_switches(spec.fabric, link.a)]
    ends = (
        [spec.fabric.ports[port].device for port in (switches[0].a, switches[0].b)]
        if switches
        else []
    )
    if ends:
        down = format_duration(spec.warm_up_ns, _DIGITS)
        yield "# - a link that fails, after which routes change:"
        yield (f"#     faults: [{{links: [{'-'.join(ends)}], down: {down}, convergence: 500us}}]")


def _between_switches(testbed: Testbed, port: int) -> bool:
    ends = (testbed.ports[port], testbed.ports[testbed.ports[port].peer])
    return all(testbed.device[end.device].kind == "switch" for end in ends)


def comment(text: str, indent: int = 0) -> Sequence[str]:
    """Return a comment on as many lines as it takes."""
    lead = " " * indent + "# "
    return textwrap.wrap(
        text,
        _WIDTH - 2,
        initial_indent=lead,
        subsequent_indent=lead,
        break_long_words=False,
        break_on_hyphens=False,
    )


def with_comment(line: str, text: str) -> str:
    """Return a line with a comment behind it."""
    return f"{line:<26}  # {text}"
