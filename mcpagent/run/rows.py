"""Episodes as conversational rows, `messages` and `tools`, which other trainers read: gold plans, played on
the real servers, or the successes of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.env.offer import discovery, first_schemas
from mcpagent.env.parsing import parse_action
from mcpagent.errors import UserError
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.run.episodes import check_catalog
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.datasets import DiskList, TaskFile, dataset_file, find_dataset, text_digest, write_jsonl
from mcpagent.storage.json_stream import read_records
from mcpagent.storage.packages import is_installed, pip_install
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import ById, read_trajectories
from mcpagent.tools.setup import Tools, open_tools

_PARQUET = ".parquet"


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """The source of rows: the tasks that are played or were, and the episodes, None if they are still to be
    played."""

    tasks: Path
    episodes: tuple[Path, ...] | None = None


def row_source(source: Path, data: Path | None) -> RowSource:
    """Return what `source` is: a run, a file of trajectories of the tasks `data`, or a dataset. Raises
    UserError."""
    if (source / "config.yaml").is_file():
        run = RunFolder.open(source)
        episodes = tuple(sorted(run.trajectories.glob("step-*.jsonl*")))
        if not episodes:
            raise UserError("the run has no episodes of a training step", where=str(source))
        train = run.settings.get("data", {}).get("train")
        return RowSource(tasks=data or find_dataset(train, split="train"), episodes=episodes)
    file = dataset_file(source, "train", "validation", "heldout")
    first = next((record for _, record in islice(read_records(file), 1)), {})
    if "stop_reason" not in first:
        if data is not None:
            raise UserError("--data names the tasks of episodes, but these are tasks", where=str(source))
        return RowSource(tasks=file)
    if data is None:
        raise UserError(
            "does not say which tools its episodes were offered: their tasks do",
            where=str(source),
            remedy="name the tasks that were played: --data FILE",
        )
    return RowSource(tasks=data, episodes=(file,))


@dataclass
class ExportedRows:
    """The rows that were written, and the number of episodes that give none, by the reason."""

    path: Path
    rows: int = 0
    episodes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> JsonObject:
        """Return the document of `data export --json`."""
        left_out = dict(sorted(self.left_out.items()))
        return {"path": str(self.path), "rows": self.rows, "episodes": self.episodes, "left_out": left_out}


def export_rows(source: RowSource, out: Path, config: TrainConfig, console: Console) -> ExportedRows:
    """Write a row for each different episode that succeeded. A `.parquet` file needs `datasets`; what else
    `write_jsonl` writes is JSON. Raises UserError; then nothing is written."""
    if out.suffix == _PARQUET and not is_installed("datasets"):
        raise UserError(
            "parquet needs a package that is not installed: datasets",
            where=f"--out {out}",
            remedy=f"{pip_install('datasets')}, or name a .jsonl file",
        )
    done = ExportedRows(path=out)
    with TaskFile(source.tasks) as tasks, open_tools(config.tools, on_note=console.note) as tools:
        check_catalog(tasks, tools.pool, on_change=config.tools.on_catalog_change, on_note=console.note)
        if source.episodes is None:
            episodes: Iterable[Trajectory] = _played(tasks, tools, config, console)
        else:
            episodes = (e for path in source.episodes for e in read_trajectories(path, with_tokens=False))
        by_id, is_gold = ById(tasks), source.episodes is None
        rows = DiskList(_rows(episodes, by_id, tools.pool.tools, config, done, is_gold=is_gold))
        if not rows:
            told = ", ".join(f"{why} {count}" for why, count in done.left_out.most_common()) or "no episode"
            raise UserError(f"no row came of it ({told}); nothing was written", where=str(source.tasks))
        (_write_parquet if out.suffix == _PARQUET else write_jsonl)(out, rows)
    return done


def _played(
    tasks: Sequence[Task], tools: Tools, config: TrainConfig, console: Console
) -> Sequence[Trajectory]:
    """Play the gold plan of each task. Whether it succeeds the rule alone says: a judge is not asked about a
    message that the record itself calls right."""
    by_rule = DiskList(
        task.model_copy(update={"reward_spec": task.reward_spec.model_copy(update={"method": "rule"})})
        for task in tasks
    )
    with episode_progress(console, "Gold plans", total=len(by_rule)) as on_done:
        playing = collect(
            attempts(by_rule, per_task=1, seed=config.seed, label="export"),
            policy=GoldPolicy(by_rule),
            tools=tools.pool,
            settings=AgentSettings(sampling=Sampling(), discovery=discovery(config.tools)),
            concurrency=config.rollout.num_envs,
            deterministic=False,
            on_done=on_done,
        )
        return tools.io.run(playing)


def _rows(
    episodes: Iterable[Trajectory],
    tasks: Mapping[str, Task],
    catalog: Mapping[str, ToolSpec],
    config: TrainConfig,
    done: ExportedRows,
    *,
    is_gold: bool,
) -> Iterator[JsonObject]:
    """Yield the rows of the episodes; `done` counts both, and why there is none."""
    seen: set[int] = set()
    for episode in episodes:
        done.episodes += 1
        task = tasks.get(episode.task_id)
        if (why := _why_none(episode, task, is_gold=is_gold)) is None and task is not None:
            searched = discovery(config.tools)
            schemas = first_schemas(
                catalog, task.offered_tools, searched, task_id=task.id, tool_format="auto"
            )
            row: JsonObject = {"messages": conversation(episode), "tools": list(schemas)}
            key = text_digest(json.dumps(row, sort_keys=True))
            why = "the same conversation again" if key in seen else None
            if why is None:
                seen.add(key)
                done.rows += 1
                yield row
        if why is not None:
            done.left_out[why] += 1


def _why_none(episode: Trajectory, task: Task | None, *, is_gold: bool) -> str | None:
    if task is None:
        return "not of these tasks"
    if not episode.is_success:
        return "no success" if episode.is_success is False else "unscored"
    if any(turn.parse_failures for turn in episode.turns):
        return "a call that cannot be read"
    truth = task.truth
    is_told = truth.final_answer or truth.reference_answer or truth.state or truth.abstain
    return "nothing says what the last message is" if is_gold and not is_told else None


def conversation(episode: Trajectory) -> list[JsonObject]:
    """Return the messages of an episode as chat APIs hold them: calls with ids of nine letters and digits,
    which is what Mistral's template takes, arguments as objects, a `tool` message for each result."""
    messages = list(episode.prompt)
    count = 0
    for turn in episode.turns:
        ids = [f"call{count + place:05}" for place in range(len(turn.tool_calls))]
        count += len(ids)
        calls = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.written_as or call.tool, "arguments": call.arguments},
            }
            for call_id, call in zip(ids, turn.tool_calls, strict=True)
        ]
        text = episode.final_answer if turn is episode.turns[-1] and not calls else _text(turn)
        said: JsonObject = {"role": "assistant", "content": text or ""}
        messages.append(said | ({"tool_calls": calls} if calls else {}))
        for call_id, call, result in zip(ids, turn.tool_calls, turn.tool_results, strict=True):
            name = call.written_as or call.tool
            messages.append(
                {"role": "tool", "content": result.content, "name": name, "tool_call_id": call_id}
            )
        if turn.user_message is not None:
            messages.append({"role": "user", "content": turn.user_message})
    return messages


def _text(turn: Turn) -> str:
    """Return what a turn says besides its thoughts and its calls; nothing if those are in a form that is not
    told from text without the model's template."""
    if not turn.tool_calls:
        return turn.completion.text.rpartition("</think>")[2].strip()
    parsed = parse_action(turn.completion.text)
    return parsed.text if len(parsed.calls) == len(turn.tool_calls) else ""


def _write_parquet(out: Path, rows: Sequence[JsonObject]) -> None:
    """Write the rows with each message and each tool as JSON, a type of `datasets`: a table of their own
    fields would give every call the arguments of all others, empty."""
    from datasets import Dataset, Features, Json, List  # pyright: ignore

    features = Features({"messages": List(Json()), "tools": List(Json())})
    with atomic_file(out) as temporary:
        clean: list[Any] = [SECRETS.value(row) for row in rows]
        Dataset.from_list(clean, features=features).to_parquet(temporary)
