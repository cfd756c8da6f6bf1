"""The text of a first campaign, and of the lossless fabric that RoCE has beside it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestration.campaign.skeleton.arms import DCQCN, DCTCP, Arm, ChosenArms, Comparison, Incast
from orchestration.core.topology import Testbed
from orchestration.core.units import format_duration, format_size

REPEATS = 6
_WIDTH = 100
_DIGITS = 6


@dataclass(frozen=True)
class SkeletonSpec:
    """All that a first campaign says.

    `file` and `testbed` are as the commands and the campaign name them. With `like`, the testbed is
    a file beside it that makes that one lossless; `fabric` is the one that was asked for. Times are
    in ns. It is `settled` if nearly all of the load can arrive within them.
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
        """The testbed as a command takes it, from where the file is named."""
        is_path = self.testbed.startswith((".", "/"))
        return str(Path(self.file).parent / self.testbed) if is_path else self.testbed

    @property
    def command(self) -> str:
        """The file as a shell takes it."""
        return shlex.quote(self.file)


def campaign_text(spec: SkeletonSpec) -> str:
    """Return the campaign file."""
    parts = [_head(spec), _fabric(spec), _arms(spec), _traffic(spec), _times(spec)]
    return "\n\n".join("\n".join(part) for part in (*parts, _next(spec))) + "\n"


def lossless_text(testbed: Testbed, seen: str) -> str:
    """Return a testbed file: the fabric that is `seen` there, with PFC and a shared buffer.

    Of several traffic classes the first becomes that of RoCE.
    """
    shared = 2 * max(port.buffer_bytes for port in testbed.switch_ports)
    classes = [klass.name for klass in testbed.classes]
    lines = [
        f"# {testbed.name} with lossless switches, for RoCE NICs: made by `closloop init`.",
        f"like: {seen}",
        f"name: {lossless_name(testbed)}",
        f"description: {testbed.name} with PFC",
        "# The ports of a switch share its buffer. Priority flow control stops a sender before it",
        "# overflows; alpha says how much of what is free a queue may take.",
    ]
    if not classes:
        lines.append(f"switch: {{buffer: {format_size(shared, 3)}, alpha: 1/8, pfc: [3]}}")
        return "\n".join(lines) + "\n"
    first, *others = classes
    alphas = ", ".join([f"{first}: 1/8", *(f"{name}: 1" for name in others)])
    lines.append(
        f"switch: {{buffer: {format_size(shared, 3)}, alpha: {{{alphas}}}, pfc: [{first}]}}"
    )
    lines.append("classes:")
    for klass in testbed.classes:
        control = DCQCN if klass.name == first else klass.congestion_control
        lines.append(
            f"  - {{name: {klass.name}, weight: {klass.weight}, congestion_control: {control}}}"
        )
    return "\n".join(lines) + "\n"


def lossless_name(testbed: Testbed) -> str:
    """Return the name of a testbed that is made lossless."""
    return f"{testbed.name}-pfc"


def _head(spec: SkeletonSpec) -> Iterator[str]:
    incasts = ", with incasts on top" if spec.incast else ""
    yield from _comment(
        f"Which of these is best for whom: {spec.comparison.title}? {spec.workload} at "
        f"{spec.load:.0%} load{incasts}, on {spec.fabric.description or spec.fabric.name}. "
        "Made by `closloop init`, and yours to edit."
    )
    yield "#"
    commands = (
        (f"closloop plan {spec.command}", "what would run, and how long it takes"),
        (f"closloop run {spec.command}", "run it; the same command goes on after Ctrl-C"),
        (f"closloop report runs/{spec.name}", "tables, and a page that opens offline"),
    )
    room = max(len(command) for command, _ in commands)
    for command, what in commands:
        yield f"#   {command:<{room}}   {what}"
    yield "#"
    yield from _comment(
        "A field that does not exist, or a value without its unit, is refused with its line. "
        "docs/generated/campaign-file.md has all fields."
    )
    yield _with_comment(f"campaign: {spec.name}", f"results go to runs/{spec.name}")


def _fabric(spec: SkeletonSpec) -> Iterator[str]:
    yield from _comment(
        f"The fabric. `closloop inventory show {shlex.quote(spec.shown)}` draws it, `closloop "
        "inventory list` has others; a file of your own is named by its path."
    )
    yield f"testbed: {spec.testbed}"
    if spec.comparison.transport == DCTCP:
        yield from _comment(
            "Where it runs: Linux in virtual time. `closloop run --on fluid --out first-look` "
            "gives a first look in seconds, `--on simulated` is ns-3, `--on hardware` a rack."
        )
    else:
        yield from _comment(
            "Where it runs: RoCE NICs and switches in virtual time. `closloop run --on simulated` "
            "is ns-3, `--on hardware` a rack."
        )
    yield "backend: emulated"
    if spec.fabric.classes:
        names = ", ".join(klass.name for klass in spec.fabric.classes)
        yield from _comment(
            f"Each of the fabric's traffic classes ({names}) has a transport of its own. Flows "
            "are of the first, unless their pattern says `class`."
        )
    elif spec.comparison.transport == DCTCP:
        yield from _comment("The hosts' TCP. Others: cubic, reno, bbr (docs/campaign.md, host).")
        yield f"host: {{congestion_control: {DCTCP}}}"
    else:
        yield from _comment(
            "The hosts' NICs: RoCE under DCQCN, with the parameters that NICs have (mlx5; others: "
            "paper, hpcc). Other congestion controls of NICs are swift, timely, hpcc, rlcc."
        )
        yield f"host: {{congestion_control: {DCQCN}, roce: {{dcqcn: mlx5}}}}"
    if spec.comparison.several_paths:
        yield from _comment(
            "Switches choose a path anew after a gap in a flow. Each tuner sets how long that is."
        )
        yield "load_balancing: {kind: flowlets, timeout: 200us}"


def _arms(spec: SkeletonSpec) -> Iterator[str]:
    yield from _comment(
        "What is compared. All get the same flows in each repeat, so that differences are paired. "
        "A fair set has a published setting, a rule that learns nothing, and beside a learned "
        "tuner its placebo: what is not above that was not learned."
    )
    yield "tuners:"
    room = max(len(arm.entry) for arm in spec.chosen.arms)
    for arm in spec.chosen.arms:
        yield from _listed(arm, room)
    for name in spec.chosen.without:
        yield from _comment(
            f"{name} has no packaged network for this. Its own: closloop train {name} --help, then "
            f"{{name: {name}, checkpoint: FILE.safetensors}}",
            indent=2,
        )
    if spec.chosen.others:
        yield "  # further ones, ready to be taken in:"
        for arm in spec.chosen.others:
            yield from _item(arm.entry, "  # ")
    if spec.comparison.several_paths:
        yield from _comment(
            f"best-static, the arm to beat: closloop search {spec.command} --over timeouts, then",
            indent=2,
        )
        kind = "timeout"
    else:
        yield from _comment(
            f"best-static, the arm to beat: closloop search {spec.command}, then", indent=2
        )
        kind = "static"
    yield f"  # - {{name: {kind}, label: best-static, from: search-results/{spec.name}.yml}}"


def _listed(arm: Arm, room: int) -> Iterator[str]:
    line = f"  - {arm.entry:<{room}}   # {arm.comment}"
    if len(line) > _WIDTH:
        yield from _comment(arm.comment, indent=2)
        yield from _item(arm.entry, "  ")
    else:
        yield line


def _item(entry: str, indent: str) -> Iterator[str]:
    """Yield an item of a list, over several lines if it is too long for one."""
    yield from textwrap.wrap(
        entry,
        _WIDTH,
        initial_indent=f"{indent}- ",
        subsequent_indent=f"{indent}   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _traffic(spec: SkeletonSpec) -> Iterator[str]:
    yield from _comment(
        "What is sent: flows between random hosts, sizes by a published distribution (`closloop "
        "traffic list`), as a share of the hosts' line rate."
    )
    if spec.incast:
        yield from _comment(
            f"Then incasts: {spec.incast.fan_in} hosts send to one at the same moment, again and "
            "again. Other kinds: all-to-all, message-mix, concurrent, flow, replay."
        )
    yield "traffic:"
    yield f"  - {{kind: poisson, workload: {spec.workload}, load: {spec.load:g}}}"
    pattern = "{kind: incast, fan_in: 16, size: 128KB, period: 2ms}"
    if spec.incast:
        size = format_size(spec.incast.size_bytes, 3)
        period = format_duration(spec.incast.period_ns, _DIGITS)
        yield (
            f"  - {{kind: incast, fan_in: {spec.incast.fan_in}, size: {size}, period: {period}}}"
        )
    else:
        yield f"  # - {pattern}"


def _times(spec: SkeletonSpec) -> Iterator[str]:
    yield from _comment(
        f"How often: each repeat has flows of its own, the same for all tuners. {REPEATS} pairs "
        "are the fewest whose signs alone can show a difference at 5 % (2 / 2^6 = 0.03); intervals "
        "narrow with the root of their number, and more repeats keep what is done."
    )
    yield f"repeats: {REPEATS}"
    yield _with_comment("seed: 1", "decides every random draw: one seed is one result")
    yield from _comment(
        "How long, in the trial's own time. The fabric is empty at first, so that what starts in "
        "the warm-up is sent and not counted. Flows that start until `duration` have `drain` more "
        "to end; a trial ends when all have. `closloop plan` says how much of the load can arrive "
        "within the time that is measured."
    )
    if not spec.settled:
        yield from _comment(
            f"{spec.workload}'s largest flows outlast that by far: `closloop plan` says which "
            "times would do, and what the load comes to in these."
        )
    yield f"warm_up: {format_duration(spec.warm_up_ns, _DIGITS)}"
    yield f"duration: {format_duration(spec.duration_ns, _DIGITS)}"
    yield f"drain: {format_duration(spec.drain_ns, _DIGITS)}"
    period = "500us" if spec.comparison.several_paths else "100us"
    yield _with_comment(f"sample_period: {period}", "all queues are read so often, and tuners act")


def _next(spec: SkeletonSpec) -> Iterator[str]:
    yield "# What to change next, one thing at a time:"
    yield "# - how it depends on load: `load: $load` in the traffic above, and"
    lower, higher = spec.load / 2, min(0.9, spec.load * 4 / 3)
    yield f"#     factors: {{load: [{lower:.2g}, {spec.load:.2g}, {higher:.2g}]}}"
    yield "# - as many repeats as a result needs, in place of a number:"
    yield f"#     repeats: {{until: 3%, of: [slowdown_mean], least: {REPEATS}, most: 40}}"
    if spec.comparison.several_paths:
        yield "# - who is compared with whom:"
        yield f"#     closloop report runs/{spec.name} --baseline {spec.comparison.baseline}"
    switches = [link for link in spec.fabric.links if _between_switches(spec.fabric, link.a)]
    ends = (
        [spec.fabric.ports[place].device for place in (switches[0].a, switches[0].b)]
        if switches
        else []
    )
    if ends:
        down = format_duration(spec.warm_up_ns, _DIGITS)
        yield "# - a link that fails, and routes that follow:"
        yield (f"#     faults: [{{links: [{'-'.join(ends)}], down: {down}, convergence: 500us}}]")


def _between_switches(testbed: Testbed, port: int) -> bool:
    ends = (testbed.ports[port], testbed.ports[testbed.ports[port].peer])
    return all(testbed.device[end.device].kind == "switch" for end in ends)


def _comment(text: str, indent: int = 0) -> Sequence[str]:
    lead = " " * indent + "# "
    return textwrap.wrap(
        text,
        _WIDTH - 2,
        initial_indent=lead,
        subsequent_indent=lead,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _with_comment(line: str, comment: str) -> str:
    return f"{line:<26}  # {comment}"
