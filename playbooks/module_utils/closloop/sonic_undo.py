"""What an undo takes back of a row of CONFIG_DB: fields that provisioning wrote, and nothing else.

Many rows are shared: an operator who changes another field of a row, or the same one, wants to keep
that. So the former values of single fields are saved, with those written, by field:
`{"was": {field: text or None}, "wrote": {field: [text, ...]}}`.
"""

from __future__ import annotations

from ansible.module_utils.agent.sonic import configdb

# Fields that are lists of priorities: provisioning adds to them.
LISTS = ("pfc_enable", "pfcwd_sw_enable")
# Orchagent takes a row of these as one setting, and half a row as none.
_ONE_SETTING = (
    "BUFFER_PG",
    "HIGH_FREQUENCY_TELEMETRY_GROUP",
    "HIGH_FREQUENCY_TELEMETRY_PROFILE",
    "PFC_WD",
    "SCHEDULER",
)


def parts(text: str) -> set:
    """Return the priorities in a list."""
    return {*text.split(",")} - {""}


def noted(saved: dict | None, before: dict, after: dict, asked: dict) -> dict:
    """Return what to save before the row `before` becomes `after`, where `asked` is asked for.

    `saved` is what is saved of it already, if anything is. An interval may be written as `after`
    has it first, and then as asked for; so it is ours with either value.
    """
    was, wrote = ({**saved[part]} if saved else {} for part in ("was", "wrote"))
    for name in asked:
        values = {after[name], after[name] if name in LISTS else asked[name]}
        if values != {before.get(name)}:
            was.setdefault(name, before.get(name))
            wrote[name] = sorted({*wrote.get(name, ()), *values})
    return {"was": was, "wrote": wrote}


def restored(key: str, saved: dict, present: dict | None) -> tuple:
    """Return the row that an undo leaves, or None, and what it leaves to somebody else, in words.

    A row is removed with its last field.
    """
    row, others = dict(present or {}), []
    was, wrote = saved["was"], saved["wrote"]
    defaults = configdb.DEFAULTS.get(key, {})
    for name, values in wrote.items():
        found = row.get(name)
        former = defaults.get(name) if was[name] is None else was[name]
        if found == former:
            continue
        if found not in values and name in LISTS and found is not None:
            ours = parts(",".join(values)) - parts(former or "")
            if not ours & parts(found):
                continue
            former = ",".join(sorted(parts(found) - ours)) or None
        elif found not in values:
            now = "has been removed" if found is None else f"has been set to {found}"
            others.append(f"{name} {now}")
            continue
        if former is None:
            del row[name]
        else:
            row[name] = former
    if key.partition("|")[0] in _ONE_SETTING and present is not None:
        if not any(was.values()):
            others += [f"{name} has been added" for name in sorted(present) if name not in wrote]
        if others:
            row = present
    return row or None, others
