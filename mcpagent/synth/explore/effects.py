"""What a change is seen by: two readings of the same, and the state check that tells them apart."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from mcpagent.core.matching import others_unchanged, values_equal
from mcpagent.core.placeholders import result_value
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolResult
from mcpagent.synth.explore.graph import Fact, scalars
from mcpagent.synth.tasks.run import says_no

MOST_CHECKS = 3  # of one task, and reads that watch a server
_FIELD = re.compile(r"[A-Za-z_]\w*")
_LONGEST = 4000  # characters of a text or a list that is expected as it stands


@dataclass(frozen=True)
class EffectCheck:
    """What a read has to give after the change. `covers` are the values that it tells, as texts."""

    expect: JsonObject
    covers: frozenset[str]
    nothing_else: bool


def check_of(
    read: Fact, was: ToolResult, now: ToolResult, values: Sequence[Any], there: Collection[str]
) -> EffectCheck | None:
    """Return what tells the change; None if nothing does. `there` are the values of what was there before."""
    if now.is_error or now.failure is not None or says_no(now):
        return None
    after = result_value(now)
    before = None if was.is_error or was.failure is not None or says_no(was) else result_value(was)
    asked = set(map(str, scalars(read.arguments)))
    # In the listing of its folder a file goes by its name alone.
    shown = {value: str(value) for value in values}
    shown |= {str(v).rpartition("/")[2]: str(v) for v in values if folder_of(str(v)) in asked - {""}}
    expect: JsonObject = {}
    _compare(before, after, "", list(shown), expect)
    told = json.dumps(expect, ensure_ascii=False)
    covers = {
        whole for value, whole in shown.items() if json.dumps(value, ensure_ascii=False).strip('"') in told
    }
    if before is None and expect:  # nobody could ask for it before
        covers |= asked & set(shown.values())
    # Where a value stands, or what is left of a list, tells which thing was changed.
    is_placed = any("[" in path or "equals" in str(rule) for path, rule in expect.items())
    covers |= set(there) if is_placed or (expect and asked & set(there)) else set()
    is_alone = before is not None and others_unchanged(expect, after, before)
    return EffectCheck(expect, frozenset(covers), is_alone) if covers and expect else None


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


def covering(seen: Sequence[tuple[Fact, EffectCheck]], values: Sequence[Any]) -> list[Fact] | None:
    """Return as few reads as tell all the values between them; None if they do not. One that shows that
    nothing else was changed comes first, if there is one."""
    missing = {str(value) for value in values}
    left, picked = list(seen), list[Fact]()
    while missing or not picked:
        if not left or len(picked) == MOST_CHECKS:
            return None
        is_first = not picked
        best = max(left, key=lambda s: (is_first and s[1].nothing_else, len(s[1].covers & missing)))
        left.remove(best)
        if best[1].covers & missing or not values:
            picked.append(best[0])
            missing -= best[1].covers
    return picked


def folder_of(text: str) -> str:
    """Return what stands before the last slash."""
    return text.rpartition("/")[0]
