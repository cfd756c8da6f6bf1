"""Reads a CatBoost regressor (`save_model(path, format="json")`) as integer trees, or refuses it.

What a policy needs to know in addition to the trees is JSON in the model's metadata, under
`METADATA`:

    model.get_metadata()["closloop"] = json.dumps({
        "history": 3, "least_action": 0.8, "most_action": 1.2, "target": 0.064, "beta": 1.5,
        "features": ["delta[0]", "action[0]", "delta[1]", ...],  # in the order of training
    })

`target` and `beta` default to the paper's values, `features` to the names that the model was
trained with. Features are deltas, actions, and the words of `PRESENT`
(`orchestration.policies.trees`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from orchestration.core.congestion import congestion_control
from orchestration.core.errors import InputError, Problem, raise_any, unreadable
from orchestration.policies.trees import (
    MAX_ACTION,
    MAX_DEPTH,
    MAX_HISTORY,
    MAX_LEAVES,
    MAX_TREES,
    MIN_ACTION,
    ONE,
    PRESENT,
    IntegerTrees,
    Settings,
    Tree,
    feature_names,
    fits_32_bits,
)

METADATA = "closloop"
_MAX_THRESHOLD = 2**15
# Losses with which a prediction is not the sum of leaves, but a function of it, like exp.
_NOT_SUMS = ("Logloss", "CrossEntropy", "Poisson", "Tweedie")
_SETTINGS_REMEDY = (
    f'set model.get_metadata()["{METADATA}"] to JSON like '
    '{"history": 3, "least_action": 0.8, "most_action": 1.2} before it is saved'
)


def read_model(path: Path) -> IntegerTrees:
    """Return the model in a CatBoost JSON file as integer trees.

    Raises InputError, with all problems, for a file that is no such model, and for a model that
    cannot be a policy: it has categories, missing values, trees that are not oblivious, too many
    trees or leaves, features that a flow does not have, or leaves or thresholds that are too large
    or no numbers.
    """
    where = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(where, error, "give the path of a model") from error
    except ValueError as error:
        raise InputError.single(
            where, "is no JSON", 'save it with model.save_model(path, format="json")'
        ) from error
    try:
        return _model(where, data)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError.single(
            where,
            f"is no CatBoost model in JSON ({type(error).__name__}: {error})",
            'save it with model.save_model(path, format="json")',
        ) from error


def _model(where: str, data: Mapping[str, Any]) -> IntegerTrees:
    raise_any([Problem(where, *fault) for fault in _faults_of_kind(data)])
    floats = data["features_info"]["float_features"]
    settings, names = _settings(where, data["model_info"].get(METADATA), floats)
    faults = _faults_of_trees(data, floats, names, settings)
    raise_any([Problem(where, *fault) for fault in faults])
    scale, (bias,) = data["scale_and_bias"]
    trees = _integer_trees(data["oblivious_trees"], names, settings, scale, bias)
    if not fits_32_bits(trees):
        raise InputError.single(
            where, "its leaves add up to more than 32 bits", "train it on actions near 1"
        )
    return IntegerTrees(settings, trees)


def _faults_of_kind(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what makes a model impossible as integer trees, each as (what, remedy)."""
    info = data["features_info"]
    for kind in ("categorical", "text", "embedding"):
        if info.get(f"{kind}_features"):
            names = ", ".join(_name(item) for item in info[f"{kind}_features"])
            yield (
                f"it has {kind} features ({names}), and a NIC has numbers only",
                "train it on deltas and actions as numbers",
            )
    missing = [
        _name(item)
        for item in info.get("float_features", [])
        if item["has_nans"] and item["nan_value_treatment"] != "AsIs"
    ]
    if missing:
        yield (
            f"it decides on missing values of {', '.join(missing)}, and a NIC has none",
            "leave samples without a value out of its training",
        )
    if "oblivious_trees" not in data:
        if "trees" not in data:
            raise KeyError("oblivious_trees")
        yield (
            "its trees are not oblivious (grow_policy Depthwise or Lossguide)",
            "train it with CatBoost's default, grow_policy='SymmetricTree'",
        )
    loss = _loss(data)
    if loss in _NOT_SUMS:
        yield (
            f"it was trained by {loss}, so that the sum of its leaves is not yet its prediction",
            "train it by RMSE, or another loss on actions themselves",
        )
    if len(data["scale_and_bias"][1]) != 1:
        yield "it has several outputs, and an action is one number", "train a regressor of one"


def _loss(data: Mapping[str, Any]) -> str:
    """Return the name of the loss that CatBoost minimised; "" if the file does not say."""
    try:
        return str(data["model_info"]["params"]["loss_function"]["type"])
    except (KeyError, TypeError):
        return ""


def _settings(
    where: str, text: str | None, floats: Sequence[Mapping[str, Any]]
) -> tuple[Settings, tuple[str, ...]]:
    """Return a model's settings, and the names of its features in the order of its training.

    `text` is the JSON in its metadata. Raises InputError if it is missing or wrong.
    """
    if text is None:
        raise InputError.single(where, f"its metadata has no {METADATA!r}", _SETTINGS_REMEDY)
    given = _parsed(where, text)
    numbers = _checked_numbers(where, {"target": 0.064, "beta": 1.5, **given})
    thousandths = {key: round(numbers[key] * 1000) for key in ("target", "beta")}
    _check_ranges(where, numbers, thousandths)
    trained = [item["feature_id"] or str(item["flat_feature_index"]) for item in floats]
    names = given.get("features") or trained
    if not isinstance(names, list):
        raise InputError.single(
            where,
            f"'features' in its metadata {METADATA!r} is no list",
            'write them like ["delta[0]", "action[0]"]',
        )
    settings = Settings(
        numbers["history"],
        round(numbers["least_action"] * ONE),
        round(numbers["most_action"] * ONE),
        thousandths["target"],
        thousandths["beta"],
        present=not set(PRESENT).isdisjoint(map(str, names)),
    )
    return settings, tuple(str(name) for name in names)


def _checked_numbers(where: str, numbers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata. Raises InputError if a number is missing or of a wrong type."""
    for key in ("history", "least_action", "most_action", "target", "beta"):
        if key not in numbers:
            raise InputError.single(
                where, f"its metadata {METADATA!r} has no {key!r}", _SETTINGS_REMEDY
            )
        value = numbers[key]
        if not _is_number(value) or (key == "history" and type(value) is not int):
            kind = "whole number" if key == "history" else "number"
            raise InputError.single(
                where,
                f"{key!r} in its metadata {METADATA!r} is no {kind}: {value!r}",
                _SETTINGS_REMEDY,
            )
    return numbers


def _check_ranges(where: str, numbers: Mapping[str, Any], thousandths: Mapping[str, int]) -> None:
    """Raise InputError for numbers that a policy cannot have."""
    history = numbers["history"]
    minimum, maximum = numbers["least_action"], numbers["most_action"]
    if not 1 <= history <= MAX_HISTORY:
        raise InputError.single(
            where,
            f"it looks at {history} observations, and a flow remembers 1 to {MAX_HISTORY}",
            "train it on fewer",
        )
    if not MIN_ACTION <= minimum < 1 < maximum <= MAX_ACTION:
        raise InputError.single(
            where,
            f"its actions go from {minimum} to {maximum}, and must lie on both sides of 1, "
            f"from {MIN_ACTION} to {MAX_ACTION:g}",
            "correct least_action and most_action",
        )
    for key, value in thousandths.items():
        bounds = congestion_control("rlcc").parameters[key]
        if not bounds.minimum <= value <= bounds.maximum:
            raise InputError.single(
                where,
                f"its {key} is {numbers[key]:g}, and must be from {bounds.minimum / 1000:g} to "
                f"{bounds.maximum / 1000:g}",
                f"correct {key} in its metadata {METADATA!r}",
            )


def _parsed(where: str, text: str) -> Mapping[str, Any]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InputError.single(
            where, f"its metadata {METADATA!r} is no JSON: {error}", _SETTINGS_REMEDY
        ) from error
    if not isinstance(given, dict):
        raise InputError.single(
            where, f"its metadata {METADATA!r} is no JSON object: {text[:40]}", _SETTINGS_REMEDY
        )
    return given


def _faults_of_trees(
    data: Mapping[str, Any],
    floats: Sequence[Mapping[str, Any]],
    names: tuple[str, ...],
    settings: Settings,
) -> Iterator[tuple[str, str]]:
    known = (*feature_names(settings.history), *PRESENT)
    unknown = [name for name in names if name not in known]
    twice = [name for name in known if names.count(name) > 1]
    if unknown or twice or len(names) != len(floats):
        yield (
            f"it has features that a flow does not have: {', '.join(unknown[:6])}"
            if unknown
            else f"two of its features are called {twice[0]}"
            if twice
            else f"it has {len(floats)} features, and {len(names)} names",
            f"with a history of {settings.history} a flow has {', '.join(known)}; "
            "name them in the metadata's features, or write a policy in C (docs/policies.md)",
        )
    trees = data["oblivious_trees"]
    leaves = sum(len(tree["leaf_values"]) for tree in trees)
    depth = max((len(tree["splits"] or ()) for tree in trees), default=0)
    for count, maximum, what in (
        (len(trees), MAX_TREES, "trees"),
        (depth, MAX_DEPTH, "levels in a tree"),
        (leaves, MAX_LEAVES, "leaves"),
    ):
        if count > maximum:
            yield (
                f"it has {count} {what}, and a NIC decides with at most {maximum}",
                "train it with fewer iterations, or a smaller depth",
            )
    if not trees:
        yield "it has no trees", "train it"
    yield from _faults_of_numbers(trees, data["scale_and_bias"])


def _faults_of_numbers(trees: Sequence[Any], scale_and_bias: Any) -> Iterator[tuple[str, str]]:
    scale, (bias,) = scale_and_bias
    for number, tree in enumerate(trees):
        bad = [value for value in tree["leaf_values"] if not _is_number(value)]
        if bad:
            yield f"a leaf of tree {number} is {bad[0]}, which is no number", "train it again"
        expected = 1 << len(tree["splits"] or ())
        if len(tree["leaf_values"]) != expected:
            yield (
                f"tree {number} has {len(tree['leaf_values'])} leaves, and its levels ask for "
                f"{expected}",
                'save it again with model.save_model(path, format="json")',
            )
        for split in tree["splits"] or ():
            border = split["border"]
            if split["split_type"] != "FloatFeature":
                yield (
                    f"tree {number} splits by {split['split_type']}, and a NIC compares numbers",
                    "train it on numbers only",
                )
            elif not _is_number(border) or abs(border) >= _MAX_THRESHOLD:
                yield (
                    f"tree {number} compares with {border}, which no delta or action reaches",
                    "train it on deltas and actions as policy_rlcc.h counts them",
                )
    if not (_is_number(scale) and _is_number(bias)):
        yield f"its scale and bias are {scale} and {bias}, which are no numbers", "train it again"


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _name(item: Mapping[str, Any]) -> str:
    return str(item["feature_id"] or f"feature {item['flat_feature_index']}")


def _integer_trees(
    trees: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    settings: Settings,
    scale: float,
    bias: float,
) -> tuple[Tree, ...]:
    """Return the trees in units of 2^-16. The leaves of the first one include the bias."""
    index = {name: number for number, name in enumerate(settings.features)}
    result: list[Tree] = []
    for tree in trees:
        added = Fraction(0) if result else Fraction(bias)
        splits = tree["splits"] or ()
        result.append(
            Tree(
                tuple(index[names[split["float_feature_index"]]] for split in splits),
                tuple(math.floor(Fraction(split["border"]) * ONE) for split in splits),
                tuple(
                    round((Fraction(scale) * Fraction(leaf) + added) * ONE)
                    for leaf in tree["leaf_values"]
                ),
            )
        )
    return tuple(result)
