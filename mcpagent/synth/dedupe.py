"""Near-duplicates: tasks with the same plan, and those on the same things whose questions read alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from datasketch import MinHash, MinHashLSH

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.storage.disk_table import digest
from mcpagent.storage.jsonl import read_tasks
from mcpagent.synth.similar import entities, plan_signature, said, shingles

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
        self.removed[reason] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append({"task_id": task.id, "reason": reason, "like": kept})

    def as_json(self) -> JsonObject:
        removed = dict(sorted(self.removed.items()))
        return {"records": self.records, "kept": self.kept, "removed": removed, "examples": self.examples}


def distinct_tasks(path: Path, *, threshold: float, report: DedupeReport) -> Iterator[Task]:
    """The first task of each kind, in the order of the file. `threshold` is the Jaccard similarity of the
    questions, in pieces of five characters, from which tasks that call the same tools about the same things
    are one. About 4 kB of memory for each kept task."""
    plans: dict[int, str] = {}
    alike: dict[str, MinHashLSH] = {}
    for task in read_tasks(path):
        report.records += 1
        # The same calls in other words are the same task; without a call the words are all there is.
        signature = digest(plan_signature(task))
        if signature in plans:
            report.remove(task, "same_plan", plans[signature])
            continue
        lsh = alike.setdefault(_kind(task), MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS))
        sketch = MinHash(num_perm=_PERMUTATIONS, seed=1)
        sketch.update_batch(list(shingles(task)))
        near = lsh.query(sketch)
        if near:
            report.remove(task, "similar", str(sorted(map(str, near))[0]))
            continue
        plans[signature] = task.id
        lsh.insert(f"{task.id}: {said(task)[:60]}", sketch, check_duplication=False)
        report.kept += 1
        yield task


def _kind(task: Task) -> str:
    """Only tasks that are equal in this are compared: two long questions that differ in a name read alike,
    and have different answers."""
    tools = [(step.server, step.tool) for step in task.truth.tool_sequence]
    return repr((tools, sorted(entities(task)) if tools else None))
