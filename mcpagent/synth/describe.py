"""What a dataset holds, counted as its records stream by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task


@dataclass
class DatasetCounts:
    """Counts over tasks. A task counts once for each server and tool that its gold plan calls."""

    records: int = 0
    by_class: Counter[str] = field(default_factory=Counter)
    by_complexity: Counter[str] = field(default_factory=Counter)
    by_server: Counter[str] = field(default_factory=Counter)
    by_tool: Counter[str] = field(default_factory=Counter)
    by_template: Counter[str] = field(default_factory=Counter)
    by_split: Counter[str] = field(default_factory=Counter)
    by_data_source: Counter[str] = field(default_factory=Counter)
    plan_lengths: Counter[int] = field(default_factory=Counter)
    offered_tools: Counter[int] = field(default_factory=Counter)
    prompt_chars_max: int = 0

    def add(self, task: Task) -> None:
        self.records += 1
        plan = task.truth.tool_sequence
        self.by_class[task_class(task)] += 1
        self.by_complexity[task.truth.complexity] += 1
        self.by_server.update({step.server for step in plan})
        self.by_tool.update({f"{step.server}.{step.tool}" for step in plan})
        self.by_data_source[task.data_source] += 1
        for counter, name in ((self.by_template, "template"), (self.by_split, "split")):
            if name in task.extra_info:
                counter[str(task.extra_info[name])] += 1
        self.plan_lengths[len(plan)] += 1
        if task.offered_tools is not None:
            self.offered_tools[len(task.offered_tools)] += 1
        self.prompt_chars_max = max(self.prompt_chars_max, sum(len(m.content) for m in task.prompt))

    def as_json(self) -> JsonObject:
        """Keys in a fixed order, so that equal datasets give equal documents."""
        return {
            "records": self.records,
            "by_class": _sorted(self.by_class),
            "by_complexity": {c: self.by_complexity[c] for c in ("simple", "moderate", "complex")},
            "by_server": _sorted(self.by_server),
            "by_tool": _sorted(self.by_tool),
            "by_template": _sorted(self.by_template),
            "by_split": _sorted(self.by_split),
            "by_data_source": _sorted(self.by_data_source),
            "plan_lengths": {str(n): count for n, count in sorted(self.plan_lengths.items())},
            "offered_tools": {str(n): count for n, count in sorted(self.offered_tools.items())},
            "prompt_chars_max": self.prompt_chars_max,
        }


def count_tasks(tasks: Iterable[Task]) -> DatasetCounts:
    counts = DatasetCounts()
    for task in tasks:
        counts.add(task)
    return counts


def task_class(task: Task) -> str:
    """What kind of behaviour the task asks for: as it says itself, else the first that applies."""
    truth = task.truth
    if "class" in task.extra_info:
        return str(task.extra_info["class"])
    if truth.abstain:
        return "abstain"
    if truth.user_turns:
        return "multi_turn"
    if any(step.parallel_group is not None for step in truth.tool_sequence):
        return "parallel"
    if not truth.tool_sequence:
        return "no_plan"
    return "single_call" if len(truth.tool_sequence) == 1 else "multi_step"


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))
