"""Datasets from templates or from exploring: generated, counted, and written beside their servers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.dataset_servers import DatasetServers, read_dataset_servers
from mcpagent.config.environment import resource_path
from mcpagent.config.schema import ToolsConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.rollout.setup import open_tools
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import write_jsonl
from mcpagent.synth.datasets.describe import count_tasks
from mcpagent.synth.explore.walks import explore_dataset
from mcpagent.synth.templates.pools import SPLITS
from mcpagent.synth.templates.rules import GeneratedData, generate_dataset
from mcpagent.synth.templates.template import TemplateSet, load_templates

_SHIPPED = {"core": "templates/tasks", "full": "templates/full"}


@dataclass(frozen=True, kw_only=True)
class DatasetOutput:
    """The folder that the splits go to, how many tasks each is to have, and the servers that the folder
    remembers."""

    folder: Path
    counts: Mapping[str, int]
    servers: DatasetServers
    overwrite: bool

    def write(self, tasks: Mapping[str, Sequence[Task]]) -> dict[str, Path]:
        """The files of the splits, as `write_splits` writes them."""
        return write_splits(tasks, self.folder, servers=self.servers, overwrite=self.overwrite)


def make_dataset(
    templates: str,
    tools: ToolsConfig,
    output: DatasetOutput,
    *,
    seed: int,
    distractors: int | None,
    explore: bool,
    console: Console,
) -> JsonObject:
    """Generate the tasks and write the splits; the document of `gen-data --json`. `templates` is `core`,
    `full` or a folder. Without a template for the servers, and with `explore`, the tasks come from what
    read-only tools are seen to do. Raises UserError."""
    started = time.perf_counter()
    template_set = load_templates(
        resource_path(_SHIPPED[templates]) if templates in _SHIPPED else Path(templates)
    )
    data, cassette = _generate(
        template_set,
        tools,
        console,
        counts=output.counts,
        seed=seed,
        distractors=distractors,
        explore=explore,
    )
    paths = output.write(data.tasks)
    document = _document(data, paths, template_set, seed=seed, seconds=time.perf_counter() - started)
    if cassette is not None:
        document["cassette"] = cassette
    if short := data.short_of(output.counts):
        document["short"] = {split: {"made": made, "asked": asked} for split, (made, asked) in short.items()}
        console.note(short_note(short, _why_short(data)))
    return document


def _generate(
    templates: TemplateSet,
    tools: ToolsConfig,
    console: Console,
    *,
    counts: Mapping[str, int],
    seed: int,
    distractors: int | None,
    explore: bool,
) -> tuple[GeneratedData, JsonObject | None]:
    """The tasks, and what the cassette did where there is one."""
    done: dict[str, int] = {}
    with (
        open_tools(tools, on_note=console.note) as opened,
        console.progress("Tasks", total=sum(counts.values())) as advance,
    ):

        def on_progress(split: str, kept: int, _: int) -> None:
            advance(kept - done.get(split, 0), note=split)
            done[split] = kept

        fitting = templates.for_servers({tool.server for tool in opened.pool.tools.values()})
        options = {"counts": counts, "seed": seed, "distractors": distractors, "on_progress": on_progress}
        if explore or not fitting.templates:
            console.note("no templates: the tasks come from what the read-only tools are seen to do")
            untold = sorted(t.dotted for t in opened.pool.tools.values() if not t.annotations.read_only)
            if untold:
                console.note(
                    f"never called, since they do not say that they only read: {', '.join(untold)}; "
                    "--read-only names those that do"
                )
            data = opened.io.run(explore_dataset(opened.pool, **options))
        else:
            data = opened.io.run(generate_dataset(opened.pool, fitting, **options))
        return data, opened.take_cassette_counts()


def _why_short(data: GeneratedData) -> str:
    sizes = data.entities.values()
    if all("facts" in of_split for of_split in sizes):  # explored
        things = sum(of_split["facts"] for of_split in sizes)
        return f"the read-only tools gave {things} things to ask about, each of which belongs to one split"
    tried = {
        split: ", ".join(f"{n} {pool}" for pool, n in data.entities[split].items()) for split in data.tasks
    }
    told = "; ".join(f"{split}: {of_split}" for split, of_split in tried.items())
    return f"the templates give no other task with the entities of a split ({told}); add some to pools.yaml"


def _document(
    data: GeneratedData, paths: Mapping[str, Path], templates: TemplateSet, *, seed: int, seconds: float
) -> JsonObject:
    everything = count_tasks(task for tasks in data.tasks.values() for task in tasks).as_json()
    return {
        "records": everything["records"],
        **{name: everything[name] for name in everything if name.startswith("by_")},
        "candidates": data.candidates,
        "surplus": data.surplus,
        "stages": data.stages,
        "rejects": {code.value: count for code, count in data.rejects.items()},
        "reject_examples": {code.value: list(texts) for code, texts in data.examples.items()},
        "entities": data.entities,
        "executed_calls": data.executed_calls,
        "paths": {split: str(path) for split, path in paths.items()},
        "catalog_hash": data.catalog_hash,
        "templates_sha256": templates.sha256,
        "seed": seed,
        "seconds": round(seconds, 3),
    }


def check_output(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work is done, to replace splits that are already in `folder`. Raises UserError."""
    if folder.exists() and not folder.is_dir():
        raise UserError("is a file, but the splits need a folder", where=str(folder))
    existing = [path for split in SPLITS if (path := split_path(folder, split)).exists()]
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
    if remembered is not None and not remembered.says_the_same(servers):
        raise UserError(
            f"{path.name} names other servers for the tasks of this folder, and would be replaced",
            where=str(path.parent),
            remedy="add --overwrite, or choose another folder with --out",
        )


def carry_servers(source: Path, folder: Path, *, overwrite: bool) -> DatasetServers | None:
    """What the folder of the file `source` remembers, for its tasks in `folder`; None where that is the same
    folder, or nothing is remembered. Raises UserError where the tasks of `folder` have other servers."""
    remembered = read_dataset_servers(source)
    if remembered is None or source.resolve().parent == folder.resolve():
        return None
    carried = remembered.at(folder)
    check_dataset_servers(carried, overwrite=overwrite)
    return carried


def write_servers(servers: DatasetServers | None) -> None:
    """Write what a folder is to remember, where there is something. Before its tasks: tasks without their
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
    and return the paths of the splits.

    Nothing appears in `folder` before every file is complete. With `overwrite`, files of splits without tasks
    are removed: beside splits of another seed they would leak. Raises UserError.
    """
    tasks = {split: members for split, members in tasks.items() if members}
    check_output(folder, overwrite=overwrite)
    if servers is not None:
        check_dataset_servers(servers, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as temporary:
        for split, members in tasks.items():
            write_jsonl(split_path(Path(temporary), split), members)
        write_servers(servers)
        for split in SPLITS:
            if split in tasks:
                split_path(Path(temporary), split).replace(split_path(folder, split))
            else:
                split_path(folder, split).unlink(missing_ok=True)
    return {split: split_path(folder, split) for split in tasks}


def short_note(short: Mapping[str, tuple[int, int]], why: str) -> str:
    """One sentence: which splits have fewer tasks than were asked for (made, asked), and why."""
    parts = [
        f"{split} has {made} of {asked} tasks" + ("" if made else " and no file")
        for split, (made, asked) in short.items()
    ]
    return f"{', '.join(parts)}: {why}"


def split_path(folder: Path, split: str) -> Path:
    """Where a split of a dataset is kept."""
    return folder / f"{split}.jsonl"
