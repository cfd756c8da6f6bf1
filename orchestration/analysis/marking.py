"""What backends say of the law by which their ports mark, tuner by tuner, in a line."""

from __future__ import annotations

from orchestration.analysis.summary import Arm, Condition


def marking_law(condition: Condition) -> str:
    """Return the tuners' marking laws, what they share said once; "" if the backend says nothing.

    A backend puts it into the facts as `red`: a text, or texts by name.
    """
    laws = {arm.tuner: law for arm in condition.arms if (law := _law(arm))}
    names = dict.fromkeys(name for law in laws.values() for name in law)
    return "; ".join(_said(name, laws) for name in names)


def _law(arm: Arm) -> dict[str, str]:
    for trial in arm.valid:
        law = trial.facts.get("red")
        if isinstance(law, dict):
            return {str(name).replace("_", " "): str(value) for name, value in law.items()}
        if law:
            return {"": str(law)}
    return {}


def _said(name: str, laws: dict[str, dict[str, str]]) -> str:
    values = {tuner: law[name] for tuner, law in laws.items() if name in law}
    one = set(values.values())
    text = one.pop() if len(one) == 1 else ", ".join(f"{v} ({k})" for k, v in values.items())
    return f"{name}: {text}" if name else text
