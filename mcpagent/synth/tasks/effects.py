"""What a change is seen by: two readings of the same, and the state check that tells them apart."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol, TypeVar

from mcpagent.core.matching import others_unchanged, values_equal
from mcpagent.core.records import JsonObject
from mcpagent.core.shown_values import result_value
from mcpagent.core.tools import ToolResult, ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.tasks.run import says_no


class Read(Protocol):
    """A call that reads."""

    @property
    def spec(self) -> ToolSpec:
        """The tool."""
        ...

    @property
    def arguments(self) -> JsonObject:
        """Its arguments."""
        ...


R = TypeVar("R", bound=Read)

MOST_CHECKS = 3  # of one task, and reads that watch a server
_FIELD = re.compile(r"[A-Za-z_]\w*")
_LONGEST = 4000  # characters of a text or a list that is expected as it stands


@dataclass(frozen=True)
class EffectCheck:
    """The values that a read has to give after the change. `covers` are those that it tells, as texts."""

    expect: JsonObject
    covers: frozenset[str]
    nothing_else: bool


def checks_of(
    readings: Sequence[tuple[R, ToolResult, ToolResult]], given: Any
) -> list[tuple[R, EffectCheck]] | None:
    """Return the reads that tell all that calls with the arguments `given` changed, each with what it has to
    give then; `readings` are of before and after. None if they do not: without a check of each value a wrong
    one would pass."""
    values = [value for value in scalars(given) if not isinstance(value, bool)]
    seen = ((read, _check_of(read.arguments, was, now, values)) for read, was, now in readings)
    return _covering([(read, check) for read, check in seen if check], values)


def state_check(read: Read, expect: JsonObject, *, nothing_else: bool = True) -> JsonObject:
    """Return the check of a task's state: that a read gives what is expected of it."""
    call = {"tool": read.spec.name, "arguments": read.arguments}
    return {"call": call, "expect": expect} | ({"nothing_else_changed": True} if nothing_else else {})


def _check_of(
    arguments: JsonObject, was: ToolResult, now: ToolResult, values: Sequence[Any]
) -> EffectCheck | None:
    """Return what of a read with such `arguments` tells the change that a call with such `values` made; None
    if nothing does."""
    if now.is_error or says_no(now):
        return None
    after = result_value(now)
    before = None if was.is_error or says_no(was) else result_value(was)
    asked = set(map(str, scalars(arguments)))
    # In the listing of its folder a file goes by its name alone.
    shown = {value: str(value) for value in values}
    shown |= {str(v).rpartition("/")[2]: str(v) for v in values if folder_of(str(v)) in asked - {""}}
    expect: JsonObject = {}
    _compare(before, after, "", list(shown), expect)
    told, then, before_then = (json.dumps(each, ensure_ascii=False) for each in (expect, after, before))
    # What was there is told by its place in a list, or by what is left without it.
    is_placed = any("[" in path for path in expect)

    def tells(value: Any) -> bool:
        text = json.dumps(value, ensure_ascii=False).strip('"')
        is_there = text in before_then and (is_placed or text not in then)
        return text in told or is_there or str(value) in asked

    covers = frozenset(whole for value, whole in shown.items() if tells(value)) if expect else frozenset()
    is_alone = before is not None and others_unchanged(expect, after, before)
    return EffectCheck(expect, covers, is_alone) if covers else None


def _compare(before: Any, after: Any, path: str, values: Sequence[Any], expect: JsonObject) -> None:
    """Put into `expect` how `after` differs from `before`, of which None is known if it is new."""
    is_new = before is None
    if not is_new and type(before) is type(after) and values_equal(before, after):
        return None
    if isinstance(after, dict) and isinstance(before, dict | None):
        old = before or {}
        if not all(map(_FIELD.fullmatch, (*old, *after))):  # a path cannot name every field
            return _stand(after, path, expect) if path and not is_new else None
        names = {key: f"{path}.{key}" if path else key for key in (*old, *after)}
        expect |= {names[key]: {"absent": True} for key in old.keys() - after.keys()}
        for key in after:
            _compare(old.get(key), after[key], names[key], values, expect)
    elif isinstance(after, list) and isinstance(before, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            _compare(old, new, f"{path}[{place}]", values, expect)
    elif isinstance(after, list) and isinstance(before, list | None):
        left = list(after)
        for item in before or ():
            place = next((n for n, other in enumerate(left) if values_equal(item, other)), None)
            if place is None:
                return _stand(after, path, expect)
            left.pop(place)
        if len(left) == 1 and (pattern := _pattern(left[0], values)) not in (None, {}):
            expect[path] = {"contains": pattern} if is_new else {"contains": pattern, "increased_by": 1}
    elif any(values_equal(value, after) and type(value) is type(after) for value in values):
        expect[path] = after
    elif isinstance(after, int | float) and isinstance(before, int | float) and not isinstance(after, bool):
        expect[path] = {"increased_by": after - before}
    elif not is_new:
        _stand(after, path, expect)
    return None


def _stand(after: Any, path: str, expect: JsonObject) -> None:
    """Expect a value as it stands, if it is short and says nothing of today."""
    text = json.dumps(after, ensure_ascii=False)
    if len(text) <= _LONGEST and date.today().isoformat() not in text:
        expect[path] = {"equals": after} if isinstance(after, dict | list) else after


def _pattern(item: Any, values: Sequence[Any]) -> Any:
    """Return the item, or of an object the fields, that hold what was given, and nothing else."""
    if isinstance(item, dict):
        return {name: value for name, value in item.items() if _pattern(value, values) not in (None, {})}
    parts = list(scalars(item))
    is_given = (any(type(p) is type(v) and values_equal(v, p) for v in values) for p in parts)
    return item if parts and all(is_given) else None


def _covering(
    seen: Sequence[tuple[R, EffectCheck]], values: Sequence[Any]
) -> list[tuple[R, EffectCheck]] | None:
    """Return as few reads as tell all the values between them; None if they do not. One that shows that
    nothing else was changed comes first, if there is one."""
    missing = {str(value) for value in values}
    left, picked = list(seen), list[tuple[R, EffectCheck]]()
    while left and (missing or not picked):
        is_first = not picked
        best = max(left, key=lambda s: (is_first and s[1].nothing_else, len(s[1].covers & missing)))
        left.remove(best)
        picked.append(best)
        missing -= best[1].covers
    return None if missing or not 0 < len(picked) <= MOST_CHECKS else picked


def folder_of(text: str) -> str:
    """Return what stands before the last slash."""
    return text.rpartition("/")[0]
