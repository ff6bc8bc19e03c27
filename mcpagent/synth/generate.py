"""Datasets from templates or from exploring: generated, counted, and written with their servers."""

from __future__ import annotations

import difflib
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from mcpagent.config.dataset_servers import DatasetServers, read_dataset_servers
from mcpagent.config.environment import resource_path
from mcpagent.config.schema import ToolsConfig
from mcpagent.console import Console, counted
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.atomic import TEMPORARY_PREFIX, atomic_file, reported, write_text
from mcpagent.storage.datasets import DiskList, record_writer
from mcpagent.synth.datasets.describe import count_tasks
from mcpagent.synth.explore.candidates import Slot, argument_shape
from mcpagent.synth.explore.changes import Effects
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.explore.tasks import Learned, explore_dataset
from mcpagent.synth.tasks.prove import plays_alike
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.templates.pools import SPLITS
from mcpagent.synth.templates.rules import (
    GeneratedData,
    generate_dataset,
    short_note,
    why_short,
)
from mcpagent.synth.templates.template import TemplateSet, load_templates
from mcpagent.tools.schemas import SchemaCheck
from mcpagent.tools.servers_config import server_places
from mcpagent.tools.setup import Tools, configured_servers, open_tools, strict_cassette

_SHIPPED = {"core": "templates/tasks", "full": "templates/full"}


@dataclass(frozen=True, kw_only=True)
class DatasetOutput:
    """The folder that the splits go to, how many tasks each is to have, the servers that the folder
    remembers, and those of which only the held-out split has anything."""

    folder: Path
    counts: Mapping[str, int]
    servers: DatasetServers
    overwrite: bool
    heldout_servers: Sequence[str] = ()


def make_dataset(
    templates: str,
    tools: ToolsConfig,
    output: DatasetOutput,
    *,
    seed: int,
    distractors: int | None,
    explore: bool,
    console: Console,
    seed_values: Mapping[str, Sequence[str]] | None = None,
) -> JsonObject:
    """Generate the tasks and write the splits; the document of `gen-data --json`. `templates` is `core`,
    `full` or a folder. Without a template for the servers, and with `explore`, the tasks come from what
    read-only tools are seen to do, asked first about `seed_values` (`values_by_slot`). Raises UserError."""
    started = time.perf_counter()
    template_set = load_templates(
        resource_path(_SHIPPED[templates]) if templates in _SHIPPED else Path(templates)
    )
    more: JsonObject = {}
    with open_tools(tools, on_note=console.note) as opened:
        make: Callable[..., Coroutine[Any, Any, GeneratedData]]
        fitting = template_set.for_servers({tool.server for tool in opened.pool.tools.values()})
        explore = explore or not fitting.templates
        if explore:
            learned, more["explored"] = _learn(opened, tools, console, seed_values or {}, seed=seed)
            make = partial(explore_dataset, opened.pool, learned=learned)
        elif seed_values:
            raise UserError(
                "--seed-value is for exploring, but there are templates for these servers",
                remedy="add --explore, or leave it out",
            )
        else:
            make = partial(generate_dataset, opened.pool, fitting)
        with console.progress("Tasks", total=sum(output.counts.values())) as advance:
            making = make(
                counts=output.counts,
                seed=seed,
                distractors=distractors,
                on_progress=lambda split, kept: advance(kept, note=split),
                heldout_servers=output.heldout_servers,
            )
            data = opened.io.run(making)
        if explore:
            _note_unused(data, more["explored"], console)
        if (counts := opened.take_cassette_counts()) is not None:
            more["cassette"] = counts
    if strict_cassette(tools) is None:
        data, more["fresh_start"] = _proven_anew(data, tools, console, seed=seed)
    paths = write_splits(data.tasks, output.folder, servers=output.servers, overwrite=output.overwrite)
    document = _document(data, paths, template_set, seed=seed, seconds=time.perf_counter() - started)
    document |= more
    if short := data.short_of(output.counts):
        document["short"] = {split: {"made": made, "asked": asked} for split, (made, asked) in short.items()}
        console.note(short_note(short, why_short(data)))
    return document


def _proven_anew(
    data: GeneratedData, tools: ToolsConfig, console: Console, *, seed: int
) -> tuple[GeneratedData, JsonObject]:
    """Return the tasks whose plans are right on newly started servers too, played in another order; and how
    many were left out, by reason."""
    dropped: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    everything = [task for tasks in data.tasks.values() for task in tasks]
    Random(derive_seed(seed, "fresh start")).shuffle(everything)
    with (
        open_tools(tools, on_note=console.note) as opened,
        console.progress("Fresh start", total=len(everything)) as advance,
    ):
        cache = CallCache(opened.pool)
        for task in everything:
            outcome = opened.io.run(plays_alike(task, cache))
            advance(1)
            if outcome is not None:
                dropped[task.id] = outcome.detail
                reasons[outcome.code.value] += 1
    if dropped:
        first = next(iter(dropped))
        console.note(
            f"{counted(len(dropped), 'task')} left out, whose plans are not right on newly started servers, "
            f"such as {first}: {dropped[first][:200]}"
        )
    kept = {
        split: DiskList(task for task in tasks if task.id not in dropped)
        for split, tasks in data.tasks.items()
    }
    return replace(data, tasks=kept), {"played": len(everything), "left_out": dict(reasons)}


def _learn(
    opened: Tools,
    tools: ToolsConfig,
    console: Console,
    given: Mapping[str, Sequence[str]],
    *,
    seed: int,
) -> tuple[Learned, JsonObject]:
    """Return what the tools are seen to do, and what the document says of it."""
    console.note("no templates: the tasks come from what the read-only tools are seen to do")
    io, specs = opened.io, list(opened.pool.tools.values())
    is_alone = strict_cassette(tools) is not None
    places = {} if is_alone else server_places(configured_servers(tools, on_note=lambda _: None))
    seed_values = values_by_slot(given, specs)
    cache = CallCache(opened.pool, own_instances=opened.own_instances)
    with console.progress("Exploring") as advance:

        def on_call(facts: int, tool: str) -> None:
            advance(1, note=f"calls, {counted(facts, 'fact')}, {tool}")

        graph = io.run(learn(cache, seed=seed, seed_values=seed_values, places=places, on_progress=on_call))
        effects = Effects(cache, graph, opened.may_be_changed, seed=seed)
        io.run(effects.run(lambda tool: advance(0, note=tool)))
    pairs = ((edge, fact) for fact in graph.facts for edge in graph.edges_into(fact))
    edges = len({(edge.source.spec.dotted, fact.spec.dotted, edge.parameter) for edge, fact in pairs})
    untried = (replace(s, tools=tuple(t for t in s.tools if t not in effects.tried)) for s in graph.silences)
    silences = [*(silence for silence in untried if silence.tools), *effects.silences]
    learned: JsonObject = {
        "calls": graph.calls,
        "failed": graph.failed,
        "facts": {spec.dotted: n for spec in specs if (n := sum(fact.spec is spec for fact in graph.facts))},
        "edges": edges,
        "silent": [{"reason": s.reason, "tools": list(s.tools), "sentence": s.sentence} for s in silences],
        "changes": {
            change.spec.dotted: [reader.dotted for reader in change.readers] for change in effects.changes
        },
    }
    console.note(
        f"learned: {counted(len(graph.facts), 'fact')} of {counted(len(learned['facts']), 'tool')}, "
        f"{counted(edges, 'edge')} from a tool to another's parameter, by {counted(graph.calls, 'call')} "
        f"of which {graph.failed} failed"
    )
    for change in effects.changes:
        shown = " and ".join(reader.dotted for reader in change.readers)
        console.note(f"{change.spec.dotted} changes something that {shown} shows")
    for silence in silences:
        console.note(silence.sentence)
    return Learned(cache, graph, effects.changes, effects.watch), learned


def _note_unused(data: GeneratedData, learned: JsonObject, console: Console) -> None:
    """Say which tools answered and are in no task, in the document too."""
    unused = set(learned["facts"]) - {
        tool for tasks in data.tasks.values() for task in tasks for tool in _tools_of(task)
    }
    if unused:
        sentence = f"{', '.join(sorted(unused))} answered, but nothing that could be asked for and proven"
        console.note(sentence)
        learned["silent"].append({"reason": "no_task", "tools": sorted(unused), "sentence": sentence})


def _tools_of(task: Task) -> Iterator[str]:
    yield from (f"{step.server}.{step.tool}" for step in task.truth.tool_sequence)
    yield from (f"{call['server']}.{call['tool']}" for call in task.extra_info.get("would_call", ()))


def _document(
    data: GeneratedData, paths: Mapping[str, Path], templates: TemplateSet, *, seed: int, seconds: float
) -> JsonObject:
    return {
        **counted_tasks(data.tasks),
        "candidates": data.candidates,
        "surplus": data.surplus,
        "stages": data.stages,
        "rejects": {code.value: count for code, count in sorted(data.rejects.items())},
        "reject_examples": {code.value: texts for code, texts in sorted(data.examples.items())},
        "entities": data.entities,
        "executed_calls": data.executed_calls,
        "paths": {split: str(path) for split, path in paths.items()},
        "catalog_hash": data.catalog_hash,
        "templates_sha256": templates.sha256,
        "seed": seed,
        "seconds": round(seconds, 3),
    }


def counted_tasks(tasks: Mapping[str, Sequence[Task]]) -> JsonObject:
    """Return how many tasks the splits have together, by what they are."""
    counts = count_tasks(task for members in tasks.values() for task in members)
    return {name: count for name, count in counts.items() if name == "records" or name.startswith("by_")}


def check_output(folder: Path, *, splits: Iterable[str] = SPLITS, overwrite: bool) -> None:
    """Refuse, before any work is done, to replace splits that are already in `folder`. Raises UserError."""
    if folder.exists() and not folder.is_dir():
        raise UserError("is a file, but the splits need a folder", where=str(folder))
    existing = [path for split in splits if (path := split_path(folder, split)).exists()]
    if existing and not overwrite:
        raise UserError(
            f"{', '.join(path.name for path in existing)} would be replaced",
            where=str(folder),
            remedy="add --overwrite, or choose another folder with --out",
        )


def check_dataset_servers(servers: DatasetServers, *, overwrite: bool) -> None:
    """Refuse, before any work is done, to tell the other tasks of a folder that their servers are these.
    Raises UserError."""
    path = servers.path
    if overwrite or not path.is_file():
        return
    remembered = read_dataset_servers(path)
    if remembered is not None and remembered.settings != servers.settings:
        raise UserError(
            f"{path.name} names other servers for the tasks of this folder, and would be replaced",
            where=str(path.parent),
            remedy="add --overwrite, or choose another folder with --out",
        )


def carry_servers(source: Path, folder: Path, *, overwrite: bool) -> DatasetServers | None:
    """Return what the folder of the file `source` remembers, for its tasks in `folder`; None if that is the
    same folder, or nothing is remembered. Raises UserError if the tasks of `folder` have other servers."""
    remembered = read_dataset_servers(source)
    if remembered is None or source.resolve().parent == folder.resolve():
        return None
    carried = replace(remembered, path=folder / remembered.path.name)
    check_dataset_servers(carried, overwrite=overwrite)
    return carried


def write_servers(servers: DatasetServers | None) -> None:
    """Write what a folder is to remember, if there is something. Before its tasks: tasks without their
    servers would be played on others."""
    if servers is not None:
        write_text(servers.path, servers.as_yaml(), is_settings=True)


def write_splits(
    tasks: Mapping[str, Sequence[Task]],
    folder: Path,
    *,
    servers: DatasetServers | None = None,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Write `SPLIT.jsonl` for each split of `tasks` that has one, and the `servers` that they were made with,
    and return the paths of the splits. Raises UserError."""
    check_output(folder, overwrite=overwrite)
    if servers is not None:
        check_dataset_servers(servers, overwrite=overwrite)
    placed = ((split, task) for split, members in tasks.items() for task in members)
    counts = write_placed(placed, folder, splits=SPLITS, servers=servers)
    return {split: split_path(folder, split) for split in tasks if counts[split]}


def write_placed(
    tasks: Iterable[tuple[str | None, Task]],
    folder: Path,
    *,
    splits: Iterable[str],
    servers: DatasetServers | None,
) -> Counter[str | None]:
    """Write each task to the file of its split (one of `splits`; None: no file), and what the folder is to
    remember; return how many tasks each split has.

    Nothing appears in `folder` before every file is complete. Files of splits without tasks are removed: next
    to splits of another seed they would leak.
    """
    counts: Counter[str | None] = Counter()
    with reported(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(dir=folder, prefix=TEMPORARY_PREFIX)
        temporary = Path(stack.enter_context(made))
        files = {split: stack.enter_context(split_path(temporary, split).open("wb")) for split in splits}
        for split, task in tasks:
            counts[split] += 1
            if split is not None:
                record_writer(files[split]).write(task)
        write_servers(servers)
        for split, file in files.items():
            file.close()
            if not counts[split]:
                split_path(folder, split).unlink(missing_ok=True)
                continue
            with atomic_file(split_path(folder, split)) as path:
                split_path(temporary, split).replace(path)
    return counts


def split_path(folder: Path, split: str) -> Path:
    """Return the file of a split of a dataset."""
    return folder / f"{split}.jsonl"


def read_seed_values(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of `[SERVER.][TOOL.]PARAM=VALUE` texts by the name of their parameter. Raises
    UserError."""
    values: dict[str, list[str]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value:
            raise UserError(
                f"{text!r} does not name a value",
                where="--seed-value",
                remedy="write [SERVER.][TOOL.]PARAM=VALUE, such as path=notes/todo.md",
            )
        values.setdefault(name.strip(), []).append(value)
    return values


def values_by_slot(given: Mapping[str, Sequence[str]], specs: Sequence[ToolSpec]) -> dict[str, list[Any]]:
    """Return the values that a person named, by `SERVER.TOOL.PARAM` and as that parameter takes them. Raises
    UserError for a name that no tool has, and for a value that its parameter cannot take."""
    by_slot: dict[str, list[Any]] = {}
    slots = [(spec, slot) for spec in specs for slot in argument_shape(spec).slots]
    names = {name for spec, slot in slots for name in _names_of(slot, spec)}
    for name, values in given.items():
        meant = [(spec, slot) for spec, slot in slots if name in _names_of(slot, spec)]
        if not meant:
            near = difflib.get_close_matches(name, sorted(names), n=1)
            listed = ", ".join(sorted({slot.name for _, slot in slots})) or "none"
            raise UserError(
                f"no tool has a parameter {name!r}",
                where="--seed-value",
                remedy=f"did you mean {near[0]}?" if near else f"the parameters are: {listed}",
            )
        readers = [(spec, slot) for spec, slot in meant if spec.annotations.read_only]
        if not readers:
            tools = ", ".join(sorted({spec.dotted for spec, _ in meant}))
            raise UserError(
                f"{name!r} is a parameter of {tools} only, which does not say that it only reads",
                where="--seed-value",
                remedy=f"if it does: --read-only {tools.replace(', ', ',')}",
            )
        for spec, slot in readers:
            taken = [_converted(slot, value) for value in values]
            if fault := next(filter(None, map(SchemaCheck(slot.schema).fault, taken)), None):
                raise UserError(
                    f"{spec.dotted} does not take it as {slot.name}: {fault}", where="--seed-value"
                )
            by_slot.setdefault(f"{spec.dotted}.{slot.name}", []).extend(taken)
    return by_slot


def _names_of(slot: Slot, spec: ToolSpec) -> list[str]:
    """Return the names by which a person may call a slot: `SERVER.TOOL.PARAM`, or less of it."""
    heads = (f"{spec.dotted}.", f"{spec.name}.", f"{spec.server}.", "")
    return [head + name for name in dict.fromkeys((slot.name, str(slot.path[0]))) for head in heads]


def _converted(slot: Slot, value: str) -> Any:
    """A value that a person named, of the type that the slot takes if it can be one."""
    if slot.schema.get("enum"):
        return next((each for each in slot.schema["enum"] if str(each) == value), value)
    if slot.type == "string":
        return value
    if slot.type == "numbers":
        return [_parsed(part) for part in re.split(r"[,\s\[\]]+", value) if part]
    return _parsed(value)


def _parsed(value: str) -> Any:
    try:
        return json.loads(value.lower())
    except ValueError:
        return value
