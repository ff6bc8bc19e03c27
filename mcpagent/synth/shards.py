"""Datasets made in shards: what each shard writes, and the merge that gives the files of one run.

A shard tries its share of the candidates and writes what became of each to `shard-I-of-N.jsonl`: a line that
says how the dataset is made, then a row for every candidate. The merge goes through all candidates in the
order of one run and looks their outcomes up, so that the same tasks are kept.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpagent.console import Console, counted
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.datasets import DiskList, parse_task, part_rows, read_part
from mcpagent.synth.datasets.describe import count_tasks
from mcpagent.synth.generate import carry_servers, write_splits
from mcpagent.synth.llm.draft import DraftFault, DraftStage
from mcpagent.synth.llm.generate import divided_samples
from mcpagent.synth.llm.sample import Executed, SampleOutcome
from mcpagent.synth.tasks.stages import RejectCode, Rejection
from mcpagent.synth.templates.pools import SPLITS
from mcpagent.synth.templates.rules import (
    DatasetShard,
    GeneratedData,
    SeenTexts,
    Tally,
    fill_split,
    without_a_task,
)


@dataclass(frozen=True)
class _Part:
    path: Path
    head: JsonObject

    @property
    def number(self) -> int:
        return self.head["shard"][0]


def merge_parts(paths: Sequence[Path], out: Path, *, overwrite: bool, console: Console) -> JsonObject:
    """Write the splits of the dataset that `paths` are the shards of, with the servers that their folder
    remembers; the document of `data merge --json`.

    Raises UserError where a shard is missing or named twice, holds a candidate of another or too few, was
    made in another way than the first, or would put a task into two splits; then nothing is written.
    """
    parts = sorted((_Part(path, read_part(path)) for path in paths), key=lambda part: part.number)
    _check_parts(parts)
    servers = carry_servers(parts[0].path, out, overwrite=overwrite)
    run = parts[0].head["run"]
    if run["made_by"] == "llm":
        document, tasks = _merged_samples(parts)
    else:
        document, tasks = _merged_candidates(parts)
    _check_splits(tasks, parts)
    written = write_splits(tasks, out, servers=servers, overwrite=overwrite)
    counts = count_tasks(task for members in tasks.values() for task in members).as_json()
    short = {
        split: {"made": len(tasks.get(split, ())), "asked": count}
        for split, count in run["counts"].items()
        if run["made_by"] != "llm" and len(tasks.get(split, ())) < count
    }
    if short:
        told = ", ".join(f"{split} has {n['made']} of {n['asked']} tasks" for split, n in short.items())
        console.note(f"{told}: the shards found no more")
    return {
        "records": counts["records"],
        **{name: counts[name] for name in counts if name.startswith("by_")},
        "shards": len(parts),
        **document,
        **({"short": short} if short else {}),
        "paths": {split: str(path) for split, path in written.items()},
        "catalog_hash": run["catalog_hash"],
        "seed": run["seed"],
    }


def _check_parts(parts: Sequence[_Part]) -> None:
    """Each shard is there once, and all were made in one way."""
    first = parts[0]
    of = first.head["shard"][1]
    for part in parts[1:]:
        if part.head["shard"][1] != of:
            raise UserError(
                f"is a shard of {part.head['shard'][1]}, and {first.path} is one of {of}",
                where=str(part.path),
                remedy="merge the shards of one N",
            )
        _check_same_run(first, part)
    for before, part in itertools.pairwise(parts):
        if before.number == part.number:
            raise UserError(
                f"is shard {part.number} of {of}, which {before.path} is too",
                where=str(part.path),
                remedy="name each shard once",
            )
    present = {part.number for part in parts}
    if lost := [number for number in range(1, of + 1) if number not in present]:
        raise UserError(
            f"{len(lost)} of {of} shards are missing, such as {lost[0]}/{of}",
            where=str(first.path.parent),
            remedy="name every shard, and make again those that did not end",
        )


def _check_same_run(first: _Part, part: _Part) -> None:
    one, other = first.head["run"], part.head["run"]
    for name in [*one, *(name for name in other if name not in one)]:
        if one.get(name) == other.get(name):
            continue
        if name == "divided":
            message = f"divides what there is to ask about into other splits than {first.path}"
            remedy = "the servers answered differently: make the shards on the same data, such as a cassette"
        else:
            message = f"was made with {name} {other.get(name)}, and {first.path} with {one.get(name)}"
            remedy = "make all shards by the same command, but for --shard"
        raise UserError(message, where=str(part.path), remedy=remedy)


def _check_splits(tasks: Mapping[str, Sequence[Task]], parts: Sequence[_Part]) -> None:
    """No id comes twice, and no task is in another split than it says."""
    split_of: dict[str, str] = {}
    for split, members in tasks.items():
        for task in members:
            if task.extra_info.get("split") != split:
                message = f"task {task.id} says that it is of {task.extra_info.get('split')}, not of {split}"
                raise UserError(message, where=str(parts[0].path.parent), remedy=_MAKE_AGAIN)
            if (before := split_of.setdefault(task.id, split)) != split:
                message = f"task {task.id} is in {before} and in {split}"
                raise UserError(message, where=str(parts[0].path.parent), remedy=_MAKE_AGAIN)
    if len(split_of) != sum(map(len, tasks.values())):
        seen: set[str] = set()
        names = (task.id for members in tasks.values() for task in members)
        twice = next(name for name in names if name in seen or seen.add(name))
        raise UserError(f"task {twice} is there twice", where=str(parts[0].path.parent), remedy=_MAKE_AGAIN)


_MAKE_AGAIN = "make the shards again: gen-data --shard I/N"


def _merged_samples(parts: Sequence[_Part]) -> tuple[JsonObject, dict[str, Sequence[Task]]]:
    run, of = parts[0].head["run"], len(parts)
    outcomes: dict[int, SampleOutcome] = {}
    for part in parts:
        for where, row in part_rows(part.path):
            try:
                outcome = _sample(row, where=where)
            except (KeyError, TypeError, ValueError) as error:
                raise _no_row(error, where) from None
            if outcome.number % of != part.number - 1:
                raise UserError(
                    f"has sample {outcome.number}, which is another shard's", where=where, remedy=_MAKE_AGAIN
                )
            if outcomes.setdefault(outcome.number, outcome) is not outcome:
                raise UserError(f"has sample {outcome.number} twice", where=where, remedy=_MAKE_AGAIN)
    if lost := [number for number in range(run["samples"]) if number not in outcomes]:
        raise UserError(
            f"{len(lost)} of {run['samples']} samples are missing, such as {lost[0]}",
            where=str(parts[lost[0] % of].path),
            remedy=_MAKE_AGAIN,
        )
    tools = {tool.dotted: tool for tool in map(ToolSpec.model_validate, parts[0].head["tools"])}
    ordered = [outcomes[number] for number in sorted(outcomes)]
    tasks, yields = divided_samples(ordered, run["counts"], tools=tools, seed=run["seed"])
    if not any(tasks.values()):
        raise UserError(
            f"none of {run['samples']} samples became a task: {yields['rejects']}",
            where=str(parts[0].path.parent),
            remedy="nothing was written",
        )
    spends = [part.head["spend"] for part in parts]
    costs = [spend["cost_usd"] for spend in spends]
    spend = {
        "requests": sum(spend["requests"] for spend in spends),
        "cost_usd": None if None in costs else sum(costs),
    }
    calls = sum(part.head["executed_calls"] for part in parts)
    return {**yields, "spend": spend, "executed_calls": calls}, tasks


def _sample(row: JsonObject, *, where: str) -> SampleOutcome:
    executed = None
    if "task" in row:
        executed = Executed(task=parse_task(row["task"], where=where), calls=tuple(row["calls"]))
    faults = (DraftFault(DraftStage(f["stage"]), f["code"], f["detail"]) for f in row["faults"])
    return SampleOutcome(number=row["number"], executed=executed, faults=tuple(faults), cap=row["cap"])


def _no_row(error: Exception, where: str) -> UserError:
    return UserError(f"is not a row of a shard: {error!r}", where=where, remedy=_MAKE_AGAIN)


def _merged_candidates(parts: Sequence[_Part]) -> tuple[JsonObject, dict[str, Sequence[Task]]]:
    run = parts[0].head["run"]
    rows: DiskList[_Row] = DiskList()
    places: dict[str, dict[int, int]] = {split: {} for split in SPLITS}  # in `rows`, by index
    for part in parts:
        for row in _rows(part):
            if (place := places[row.split].setdefault(row.index, len(rows))) != len(rows):
                before = rows[place].path
                raise UserError(
                    f"has candidate {row.index} of {row.split}, which {before} has too",
                    where=str(part.path),
                    remedy=_MAKE_AGAIN,
                )
            rows.append(row)
    tasks, tally = asyncio.run(_filled(parts, rows, places))
    if not any(tasks.values()):
        raise without_a_task(run["counts"], tally)
    empty = [split for split, count in run["counts"].items() if count and not tasks.get(split)]
    if empty and run["made_by"] == "explore":
        raise UserError(
            f"{empty[0]} has no task: there is too little to ask about for shards",
            where=str(parts[0].path.parent),
            remedy="make the dataset in one run, without --shard",
        )
    data = GeneratedData.of(
        tasks,
        tally,
        entities=parts[0].head["entities"],
        catalog_hash=run["catalog_hash"],
        executed_calls=sum(part.head["executed_calls"] for part in parts),
    )
    document = {
        "candidates": data.candidates,
        "surplus": data.surplus,
        "stages": data.stages,
        "rejects": {code.value: count for code, count in data.rejects.items()},
        "reject_examples": {code.value: list(texts) for code, texts in data.examples.items()},
        "entities": data.entities,
        "executed_calls": data.executed_calls,
    }
    return document, tasks


async def _filled(
    parts: Sequence[_Part], rows: Sequence[_Row], places: Mapping[str, Mapping[int, int]]
) -> tuple[dict[str, Sequence[Task]], Tally]:
    tally = Tally()
    tasks: dict[str, Sequence[Task]] = {}
    for split in (split for split in SPLITS if split in parts[0].head["run"]["counts"]):
        least = min(parts, key=lambda part: part.head["drawn"].get(split, 0))
        source = _RecordedSource(split=split, rows=rows, places=places[split], least=least, used=tally.seen)
        tasks[split] = await fill_split(source, parts[0].head["run"]["counts"][split], tally, None)
    return tasks, tally


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What became of one candidate."""

    path: Path
    split: str
    index: int
    key: str
    words: str | None
    outcome: Task | Rejection


def _rows(part: _Part) -> Iterator[_Row]:
    shard = DatasetShard(number=part.number, of=part.head["shard"][1], seed=part.head["run"]["seed"])
    for where, row in part_rows(part.path):
        try:
            split, index, key = row["split"], row["index"], row["key"]
            if "task" in row:
                outcome = parse_task(row["task"], where=where)
            else:
                outcome = Rejection(RejectCode(row["reject"]), row["detail"])
        except (KeyError, TypeError, ValueError) as error:
            raise _no_row(error, where) from None
        if not shard.has(key) or split not in SPLITS:
            raise UserError(
                f"has candidate {index} of {split}, which is another shard's", where=where, remedy=_MAKE_AGAIN
            )
        yield _Row(path=part.path, split=split, index=index, key=key, words=row.get("said"), outcome=outcome)


@dataclass(kw_only=True)
class _RecordedSource:
    """The candidates of a split with the outcomes that shards wrote; `least` is the shard that ends first,
    `used` has the words that were used."""

    split: str
    rows: Sequence[_Row]
    places: Mapping[int, int]
    least: _Part
    used: SeenTexts
    index: int = 0

    def next(self) -> _Row | None:
        """The next candidate; None where the split had it before."""
        if self.index >= self.least.head["drawn"].get(self.split, 0):
            raise UserError(
                f"ends after {counted(self.index, 'candidate')}, before there are enough of {self.split}",
                where=str(self.least.path),
                remedy="chance gave it more than its share: merge shards of another N",
            )
        self.index += 1
        place = self.places.get(self.index - 1)
        return None if place is None else self.rows[place]

    async def make(self, candidate: _Row) -> Task | Rejection:
        """What became of it, unless another candidate said the same before."""
        if candidate.words is not None:
            if (words := f"said: {candidate.words}") in self.used:
                return Rejection(RejectCode.DUPLICATE, "another shard's candidate says the same")
            self.used.add(words)
        return candidate.outcome

    def said(self, candidate: _Row, outcome: Task | Rejection) -> str | None:
        """What only a shard writes down."""
