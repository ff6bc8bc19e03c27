"""Near-duplicates: tasks with the same plan, and those on the same things whose questions read alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from datasketch import MinHash, MinHashLSH

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.storage.datasets import read_tasks, text_digest
from mcpagent.synth.tasks.inspect import plan_signature, said, shingles, task_entities

_PERMUTATIONS = 128
_EXAMPLES = 5


@dataclass
class DedupeReport:
    """`removed` by reason; `examples` name a task that went and the one that stays for it."""

    records: int = 0
    kept: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    examples: list[JsonObject] = field(default_factory=list)

    def remove(self, task: Task, reason: str, kept: str) -> None:
        """Count a task that goes for the one named `kept`."""
        self.removed[reason] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append({"task_id": task.id, "reason": reason, "like": kept})

    def as_json(self) -> JsonObject:
        """The document of `data dedupe --json`."""
        removed = dict(sorted(self.removed.items()))
        return {"records": self.records, "kept": self.kept, "removed": removed, "examples": self.examples}


def distinct_tasks(path: Path, *, threshold: float, report: DedupeReport) -> Iterator[Task]:
    """The first task of each kind, in the order of the file, which is read twice. `threshold` is the Jaccard
    similarity of the questions, in pieces of five characters, from which tasks that call the same tools about
    the same things are one."""
    plans: dict[int, str] = {}
    alike = _AlikeTasks(threshold)
    kinds = Counter(_kind(task) for task in read_tasks(path))
    for task in read_tasks(path):
        report.records += 1
        # The same calls in other words are the same task; without a call the words are all there is.
        if (first := plans.get(signature := text_digest(plan_signature(task)))) is not None:
            report.remove(task, "same_plan", first)
            continue
        is_only_one = kinds[kind := _kind(task)] == 1
        if not is_only_one and (near := alike.add(task, kind)) is not None:
            report.remove(task, "similar", near)
            continue
        plans[signature] = task.id
        report.kept += 1
        yield task


class _AlikeTasks:
    """Locality-sensitive hashing of questions: two are alike where any band of their sketches is equal."""

    def __init__(self, threshold: float) -> None:
        self._sketch = MinHash(num_perm=_PERMUTATIONS, seed=1)
        self._bands = MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS).hashranges
        self._number_with: dict[int, int] = {}
        self._names: list[str] = []

    def add(self, task: Task, kind: int) -> str | None:
        """Remember a task that is like none of its kind; else the name of one that it is like."""
        self._sketch.clear()
        self._sketch.update_batch(sorted(shingles(task)))
        values = self._sketch.hashvalues
        keys = [text_digest(repr((kind, start, values[start:end].tolist()))) for start, end in self._bands]
        numbers = [self._number_with[key] for key in keys if key in self._number_with]
        if numbers:
            return self._names[min(numbers)]
        for key in keys:
            self._number_with[key] = len(self._names)
        self._names.append(f"{task.id}: {said(task)[:60]}")
        return None


def _kind(task: Task) -> int:
    """Only tasks that are equal in this are compared: two long questions that differ in a name read alike,
    and have different answers."""
    tools = [(step.server, step.tool) for step in task.truth.tool_sequence]
    return text_digest(repr((tools, sorted(task_entities(task)) if tools else None)))
