"""Splits without leakage for tasks that nobody drew from pools: what shares an entity stays together."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.llm.execute import Executed
from mcpagent.synth.pools import SPLITS, SplitShares

_WORD = re.compile(r"[A-Za-z0-9][\w.@/-]*")
_DATE = re.compile(r"\d{4}(-\d\d){1,2}")
_LONGEST = 60  # characters; longer arguments are texts and programs


def split_tasks(
    executed: Sequence[Executed],
    *,
    tools: Mapping[str, ToolSpec],
    shares: SplitShares,
    seed: int,
    wanted: Collection[str] = SPLITS,
) -> dict[str, tuple[Task, ...]]:
    """Every task in one split, in the order given. Two tasks whose executed calls name the same entity share
    a split; so the shares hold for the groups that this makes, and only roughly for the tasks. Each split
    that is `wanted` has a group, where there are enough."""
    leaders = _Groups()
    named = [entities(item.calls, tools) or {item.task.id} for item in executed]
    for names in named:
        leaders.join(names)
    result: dict[str, list[Task]] = {split: [] for split in SPLITS}
    leading = [leaders.leader(min(names)) for names in named]
    split_of = shares.assign(leading, seed=seed, least=dict.fromkeys(wanted, 1))
    for item, leader in zip(executed, leading, strict=True):
        split = split_of[leader]
        info = {**item.task.extra_info, "split": split}
        result[split].append(item.task.model_copy(update={"extra_info": info}))
    return {split: tuple(tasks) for split, tasks in result.items()}


def entities(calls: Sequence[JsonObject], tools: Mapping[str, ToolSpec]) -> set[str]:
    """The words in the arguments of `calls` that name something: with a capital or a digit, and no number,
    no date and no constant of the tool's schema. `tools` by `server.tool`."""
    found: set[str] = set()
    for call in calls:
        properties = tools[f"{call['server']}.{call['tool']}"].input_schema.get("properties", {})
        for name, value in call["arguments"].items():
            schema = properties.get(name, {})
            is_constant = value in schema.get("enum", ()) or value == schema.get("default")
            if isinstance(value, str) and len(value) <= _LONGEST and not is_constant:
                found |= {word for word in _WORD.findall(value) if _is_name(word)}
    return found


def _is_name(word: str) -> bool:
    has_mark = any(c.isupper() or c.isdigit() for c in word)
    return has_mark and len(word) > 1 and not _DATE.fullmatch(word) and not _is_number(word)


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).replace(",", "").isdigit()


class _Groups:
    """Disjoint sets of names; the leader of a set is its least name."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def join(self, names: set[str]) -> None:
        leaders = sorted(self.leader(name) for name in names)
        for name in leaders[1:]:
            self._above[name] = leaders[0]

    def leader(self, name: str) -> str:
        path = []
        while (above := self._above.setdefault(name, name)) != name:
            path.append(name)
            name = above
        for below in path:
            self._above[below] = name
        return name
