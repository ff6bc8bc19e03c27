"""A dataset without near-duplicates, and in splits in which nothing of one is known from another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.datasets import read_tasks, text_digest
from mcpagent.synth.generate import carry_servers, check_output, split_path, write_placed
from mcpagent.synth.tasks.inspect import groups_by, plan_signature, shingles, task_entities, user_text
from mcpagent.synth.templates.pools import SPLITS, SplitShares

GroupBy = Literal["entity", "plan"]
_COMMON = 0.05  # a text that more of the tasks name is a setting ("daily"), not a thing that they are about
_FEW_GROUPS = 10_000  # with more, no split that has a share is empty by chance
_FEW = 20  # ... if it is more than so many tasks


@dataclass(frozen=True, kw_only=True)
class SplitOutcome:
    """`crossing` tasks are about things of several splits, and are in none. A split without tasks has a count
    and no path."""

    paths: dict[str, Path]
    counts: dict[str, int]
    groups: int
    largest_group: int
    crossing: int

    def as_json(self) -> JsonObject:
        """Return the document of `data split --json`."""
        return {
            "records": sum(self.counts.values()) + self.crossing,
            "by_split": self.counts,
            "groups": self.groups,
            "largest_group": self.largest_group,
            "crossing": self.crossing,
            "paths": {split: str(path) for split, path in self.paths.items()},
        }


def split_dataset(
    path: Path,
    out: Path,
    *,
    shares: SplitShares,
    seed: int,
    group_by: GroupBy = "entity",
    drop_crossing: bool = False,
    overwrite: bool = False,
) -> SplitOutcome:
    """Write `SPLIT.jsonl` for each split with a share, reading the file twice or three times and holding two
    numbers for each record.

    Tasks that name a common entity (have the same plan) are of one group, directly or through others, and a
    group is never divided. If nearly everything is one group, `drop_crossing` gives each entity a split
    and leaves out the tasks that are about entities of several. Raises UserError.
    """
    splits = [split for split in SPLITS if _share(shares, split) > 0]
    check_output(out, splits=splits, overwrite=overwrite)
    servers = carry_servers(path, out, overwrite=overwrite)
    common = common_texts(read_tasks(path)) if group_by == "entity" else set()
    groups = largest = 0
    if drop_crossing:
        assigned = _by_each_entity(path, common, shares, seed)
    else:
        group_of = groups_by(group_keys(task, group_by, common) for task in read_tasks(path))
        sizes = np.bincount(group_of)
        groups, largest = int(np.count_nonzero(sizes)), int(sizes.max())
        _check_sizes(groups, largest, len(group_of), shares, path)
        few = dict.fromkeys(group_of) if groups <= _FEW_GROUPS else {}
        split_of = shares.assign(few, seed=seed, least=dict.fromkeys(splits, 1))
        assigned = (split_of.get(group) or shares.split_of(group, seed=seed) for group in group_of)
    placed = zip(assigned, read_tasks(path), strict=True)
    written = write_placed(placed, out, splits=splits, servers=servers)
    return SplitOutcome(
        paths={split: split_path(out, split) for split in splits if written[split]},
        counts={split: written[split] for split in splits},
        groups=groups,
        largest_group=largest,
        crossing=written[None],
    )


def _share(shares: SplitShares, split: str) -> float:
    rest = 1 - shares.heldout - shares.validation
    return {"heldout": shares.heldout, "validation": shares.validation, "train": rest}[split]


def common_texts(tasks: Iterable[Task]) -> set[int]:
    """Return the digests of texts that so many tasks name that they are not about them."""
    records = 0
    counts: Counter[int] = Counter()
    for task in tasks:
        records += 1
        counts.update(text_digest(entity) for entity in task_entities(task))
    return {key for key, count in counts.items() if count > max(_FEW, _COMMON * records)}


def group_keys(task: Task, group_by: GroupBy, common: set[int]) -> list[int]:
    """Return the digests of what a task must not have in common with one of another split: the things that it
    names, those of `common` apart, or if there are none its plan."""
    if group_by == "plan":
        return [text_digest(plan_signature(task))]
    keys = {text_digest(entity) for entity in task_entities(task)} - common
    return sorted(keys) or [text_digest(plan_signature(task))]


def _check_sizes(groups: int, largest: int, records: int, shares: SplitShares, path: Path) -> None:
    if (largest > _share(shares, "train") * records and groups > 1) or groups == 1:
        raise UserError(
            f"{largest} of {records} tasks are linked by the things they name, so they cannot be divided",
            where=str(path),
            remedy="add --drop-crossing to leave out tasks that would be in two splits, or --group-by plan",
        )


def _by_each_entity(path: Path, common: set[int], shares: SplitShares, seed: int) -> Iterator[str | None]:
    for task in read_tasks(path):
        splits = {shares.split_of(key, seed=seed) for key in group_keys(task, "entity", common)}
        yield splits.pop() if len(splits) == 1 else None


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
        """Return the document of `data dedupe --json`."""
        removed = dict(sorted(self.removed.items()))
        return {"records": self.records, "kept": self.kept, "removed": removed, "examples": self.examples}


def distinct_tasks(path: Path, *, threshold: float, report: DedupeReport) -> Iterator[Task]:
    """Yield the first task of each kind, in the order of the file, which is read twice. `threshold` is the
    Jaccard similarity of the questions, in pieces of five characters, from which tasks that call the same
    tools about the same things are one."""
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
    """Locality-sensitive hashing of questions: two are alike if any band of their sketches is equal."""

    def __init__(self, threshold: float) -> None:
        # Only this needs scipy, which takes most of a second to import.
        from datasketch import MinHash, MinHashLSH

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
        self._names.append(f"{task.id}: {user_text(task)[:60]}")
        return None


def _kind(task: Task) -> int:
    """Return the kind of a task, and only tasks of one kind are compared: two long questions that differ in a
    name read alike, and have different answers."""
    tools = [(step.server, step.tool) for step in task.truth.tool_sequence]
    return text_digest(repr((tools, sorted(task_entities(task)) if tools else None)))
