"""What every tuner must keep to, checked on made-up readings of a fabric that gets ever busier.

`closloop check-tuner` and the project's own tests run these checks:

- A tuner sees only the signals that it declares in `observes`.
- It sets only the knobs that it declares in `knobs`, within their bounds.
- At `reset` it sets every target of these knobs.
- It is deterministic: the same seed and the same readings give the same actions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from orchestration.core.knobs import KNOBS, ImpossibleSetting, Knob
from orchestration.core.ports import Tuner
from orchestration.core.records import Action, Change, Observation, Setup
from orchestration.core.signals import BY_KEY, Signal, targets
from orchestration.core.topology import Testbed
from orchestration.core.trial import Scalar, TunerSpec
from tuners import registry

_SEED, _READINGS, _PERIOD_NS = 7, 8, 100_000
_FRAME_BYTES = 1514


def check_tuner(
    reference: str, testbed: Testbed, params: Mapping[str, Scalar] | None = None
) -> list[str]:
    """Return the faults of a tuner on a testbed, each as `what: remedy`. Empty if it passes.

    `reference` is a tuner's name, `file.py:Class`, or an entry point of `closloop.tuners`.
    """
    spec = TunerSpec(reference, dict(params or {}))
    if problems := registry.check(spec.name, spec.params, testbed):
        return [problem.in_one_sentence for problem in problems]
    tuner = registry.create(spec)
    faults = [*_unknown("signal", tuner.observes, BY_KEY), *_unknown("knob", tuner.knobs, KNOBS)]
    if faults:
        return faults
    try:
        setup, actions = _play(tuner, testbed)
        _, second_trial = _play(tuner, testbed)
        _, new_tuner = _play(registry.create(spec), testbed)
    except KeyError as error:
        return [f"it looks for {error} in a reading: name what it looks at in `observes`"]
    except Exception as error:
        return [f"it raises {type(error).__name__} ({error}): correct it"]
    faults += _setting_faults(actions, tuner, testbed)
    faults += _unset_targets(setup, tuner, testbed)
    if not _same(actions, new_tuner):
        faults.append(
            "the same seed and readings give other actions: draw from a generator of the seed"
        )
    elif not _same(actions, second_trial):
        faults.append("it remembers the trial before: forget everything in `reset`")
    return faults


def readings(
    testbed: Testbed, tuner: Tuner, setup: Setup, count: int = _READINGS
) -> list[Observation]:
    """Return `count` observations of a fabric that gets ever busier.

    They have the signals that `tuner` observes. The knobs keep the values of `setup`.
    """
    rng = np.random.default_rng(0)
    observed = [BY_KEY[key] for key in tuner.observes]
    ages = np.zeros(len(testbed.queues), dtype=np.int64)
    series = {signal.key: _series(rng, signal, count, testbed) for signal in observed}
    presets = {name: KNOBS[name] for name in tuner.knobs if KNOBS[name].preset}
    settings = {name: _preset_values(knob, testbed) for name, knob in presets.items()}
    for change in setup.action:
        if change.knob not in presets:
            settings[change.knob] = dict(change.values)
            continue
        for name, values in change.values.items():
            settings[change.knob][name][change.targets] = values
    return [
        Observation(
            t_ns=_PERIOD_NS * (number + 1),
            age_ns=ages,
            values={key: values[number] for key, values in series.items()},
            settings=settings,
        )
        for number in range(count)
    ]


def _preset_values(knob: Knob, testbed: Testbed) -> dict[str, np.ndarray]:
    """Return the values of a knob that a campaign presets, one per target, by column.

    Most knobs have no preset, and an empty result.
    """
    count = len(targets(testbed, knob.scope))
    dtypes = {column.name: column.dtype for column in knob.columns}
    return {name: np.full(count, value, dtypes[name]) for name, value in knob.preset.items()}


def _series(rng: np.random.Generator, signal: Signal, count: int, testbed: Testbed) -> np.ndarray:
    """Return a signal's values, shape (count, targets). They tend to grow."""
    shape = (count, len(targets(testbed, signal.scope)))
    maximum = {"B": 400_000, "packets": 400_000 // _FRAME_BYTES}.get(signal.unit, 50)
    if signal.cumulative:
        return np.cumsum(rng.integers(0, maximum, shape), axis=0).astype(signal.dtype)
    rising = 1 + maximum * np.arange(count)[:, None] // count
    return rng.integers(0, rising, shape).astype(signal.dtype)


def _play(tuner: Tuner, testbed: Testbed) -> tuple[Setup, list[Action]]:
    """Return a tuner's setup, and its actions in one trial, of which the setup's is the first."""
    setup = tuner.reset(testbed, _SEED)
    if not isinstance(setup, Setup):
        raise TypeError(f"`reset` returns {type(setup).__name__}, not a Setup")
    answers = [tuner.act(reading) for reading in readings(testbed, tuner, setup)]
    return setup, [setup.action, *answers]


def _unknown(kind: str, names: Collection[str], known: Mapping[str, object]) -> Iterator[str]:
    for name in names:
        if name not in known:
            yield f"it names the {kind} {name!r}, which is not declared: use {', '.join(known)}"


def _setting_faults(actions: list[Action], tuner: Tuner, testbed: Testbed) -> Iterator[str]:
    """Yield the first action that sets a knob which it may not set, or a value out of bounds."""
    for number, action in enumerate(actions):
        when = f"in action {number}" if number else "at the start"
        for change in action:
            if change.knob not in tuner.knobs:
                yield f"it sets {change.knob!r} {when}: name it in `knobs`"
                return
            try:
                KNOBS[change.knob].bounds(testbed).check(change)
            except ImpossibleSetting as error:
                yield f"{change.knob} {when}, {error}: correct it".replace(": ", ", ", 1)
                return
        if len({change.knob for change in action}) < len(action):
            yield f"it changes a knob twice {when}: return one change a knob"
            return


def _unset_targets(setup: Setup, tuner: Tuner, testbed: Testbed) -> Iterator[str]:
    """Yield the knobs that have targets without an initial setting."""
    for name in tuner.knobs:
        change = KNOBS[name].of(setup.action)
        count = len(targets(testbed, KNOBS[name].scope))
        set_count = 0 if change is None else len(np.unique(change.targets))
        if set_count < count and not KNOBS[name].preset:
            yield (
                f"{set_count} of {count} {KNOBS[name].scope}s have a setting of {name} at the "
                "start: return one for each from `reset`"
            )


def _same(actions: list[Action], others: list[Action]) -> bool:
    """Whether two trials have the same actions: knobs, targets and values, in the same order."""
    return all(
        [change.knob for change in action] == [change.knob for change in other]
        and all(map(_same_change, action, other))
        for action, other in zip(actions, others, strict=True)
    )


def _same_change(change: Change, other: Change) -> bool:
    return np.array_equal(change.targets, other.targets) and all(
        np.array_equal(change[name], other[name]) for name in change.values
    )
