"""Stored episodes as logs that Inspect's viewer opens: one `.eval` file for each file of trajectories.

The format is that of inspect_ai's EvalLog, version 2: a ZIP with header.json, summaries.json and a JSON file
for each sample. Episodes are written as they are read: a large file needs no more memory than a small one,
but for its list of summaries.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind, ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import FinishReason, StopReason, Trajectory, Turn
from mcpagent.errors import UserError
from mcpagent.evaluate.report.episodes import gold_plan, gold_tasks, question
from mcpagent.evaluate.report.run_data import parse_yaml, read_evaluations, read_object
from mcpagent.evaluate.summary import EvalResult
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, read_trajectories

_VERSION = 2  # of the log's schema
_SUMMARY_CHARS = 1000  # of a question in the list of samples
_STOPS = {FinishReason.LENGTH: "max_tokens", FinishReason.OVERFLOW: "model_length"}
_LIMITS = {
    StopReason.MAX_TURNS: "turn",
    StopReason.MAX_TOOL_CALLS: "custom",
    StopReason.MAX_TOKENS: "token",
    StopReason.CONTEXT_OVERFLOW: "context",
    StopReason.LIMIT: "custom",
    StopReason.TIMEOUT: "time",
}
_ERRORS = {
    FailureKind.INVALID_ARGUMENTS: "parsing",
    FailureKind.TIMEOUT: "timeout",
    FailureKind.DENIED: "permission",
    FailureKind.LIMIT: "limit",
    FailureKind.OVERSIZE: "limit",
}


@dataclass(frozen=True)
class Source:
    """A file of trajectories, and what is known of the run that wrote it."""

    records: Path
    name: str
    run: str = ""
    manifest: JsonObject = field(default_factory=dict)
    config: JsonObject = field(default_factory=dict)
    evaluation: EvalResult | None = None
    plans: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """What is said to have played."""
        provenance = self.evaluation.provenance if self.evaluation is not None else {}
        policy, model = provenance.get("policy"), self.config.get("model")
        named = policy.get("path") or policy.get("name") if isinstance(policy, dict) else policy
        configured = model.get("name") if isinstance(model, dict) else None
        name = str(provenance.get("checkpoint") or named or configured or self.run or "unknown")
        # A checkpoint's folder on this machine says no more than its name.
        return f"{self.run}/{Path(name).name}" if Path(name).is_absolute() else name


def sources(path: Path) -> list[Source]:
    """The trajectory files of a run folder, or the one file that `path` is. Raises UserError where there are
    none."""
    if path.is_file() and path.name.endswith(RECORDS_SUFFIXES):
        return [Source(path, _stem(path))]
    if not path.is_dir():
        raise UserError(
            f"there is no run folder {path}",
            remedy="pass the folder that `mcpagent train` or `mcpagent quickstart` printed, or a file of "
            "trajectories",
        )
    files = sorted(f for f in (path / "trajectories").glob("[!.]*") if f.name.endswith(RECORDS_SUFFIXES))
    if not files:
        raise UserError(
            "holds no trajectories", where=str(path), remedy="wait for the first step, or evaluate a model"
        )
    config_file = path / "config.yaml"
    text = config_file.read_text(encoding="utf-8") if config_file.exists() else ""
    config = parse_yaml(text, config_file)
    evaluations = read_evaluations(path / "eval")
    manifest, tasks = read_object(path / "manifest.json"), gold_tasks(config)
    return [
        Source(
            file,
            _stem(file),
            run=path.resolve().name,
            manifest=manifest,
            config=config,
            evaluation=evaluations.get(_stem(file)) or evaluations.get(_stem(file).removeprefix("eval_")),
            plans={name: gold_plan(task) for name, task in tasks.items()},
        )
        for file in files
    ]


def write_log(source: Source, path: Path) -> int:
    """Write the episodes of a source as one `.eval` file and return their number; an older file stays as it
    was until the new one is whole. Raises UserError."""
    totals = _Totals()
    with atomic_file(path) as temporary, ZipFile(temporary, "w", ZIP_DEFLATED) as archive:
        for trajectory in read_trajectories(source.records):
            sample = _sample(source, trajectory, totals.epoch_of(trajectory))
            name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
            _write(archive, name, sample)
            totals.add(trajectory, sample)
        header = _header(source, totals)
        start = {"version": _VERSION, "eval": header["eval"], "plan": header["plan"]}
        _write(archive, "_journal/start.json", start)
        _write(archive, "summaries.json", totals.summaries)
        _write(archive, "header.json", header)
    return len(totals.summaries)


class _Totals:
    """What the header says of all samples."""

    def __init__(self) -> None:
        self.summaries: list[JsonObject] = []
        self.usage: Counter[str] = Counter()
        self.successes: list[float] = []
        self.rewards: list[float] = []
        self._epochs: dict[str, set[int]] = {}

    def epoch_of(self, trajectory: Trajectory) -> int:
        """The attempt, counted from 1; another number where a task was drawn twice in one step."""
        taken = self._epochs.setdefault(trajectory.task_id, set())
        epoch = trajectory.attempt + 1
        if epoch in taken:
            epoch = max(taken) + 1
        taken.add(epoch)
        return epoch

    def add(self, trajectory: Trajectory, sample: JsonObject) -> None:
        """Count a sample, and keep its line of the list."""
        for usage in sample["model_usage"].values():
            self.usage.update({name: n for name, n in usage.items() if isinstance(n, int)})
        if trajectory.is_success is not None and trajectory.reward is not None:
            self.successes.append(float(trajectory.is_success))
            self.rewards.append(trajectory.reward)
        kept = ("id", "epoch", "target", "metadata", "scores", "model_usage", "total_time", "uuid")
        self.summaries.append(
            {
                **{name: sample[name] for name in kept},
                "input": question(trajectory)[:_SUMMARY_CHARS],
                "error": sample["error"]["message"] if sample["error"] else None,
                "limit": sample["limit"]["type"] if sample["limit"] else None,
                "completed": True,
                "message_count": len(sample["messages"]),
                "turn_count": len(trajectory.turns),
            }
        )

    @property
    def epochs(self) -> int:
        """The most attempts at one task."""
        return max(map(len, self._epochs.values()), default=1)

    @property
    def sample_ids(self) -> list[str]:
        """The tasks, in the order in which they came."""
        return list(self._epochs)


def _sample(source: Source, trajectory: Trajectory, epoch: int) -> JsonObject:
    messages = list(_messages(source, trajectory))
    prompt = messages[: len(trajectory.prompt)]
    usage = _usage(trajectory)
    said = [message for message in messages if message["role"] == "assistant"]
    last = trajectory.turns[-1] if trajectory.turns else None
    choices = [{"message": said[-1], "stop_reason": _stop_reason(last)}] if last and said else []
    return {
        "id": trajectory.task_id,
        "epoch": epoch,
        "input": prompt or question(trajectory),
        "target": list(source.plans.get(trajectory.task_id, ())) or "",
        "messages": messages,
        "output": {"model": source.model, "choices": choices, **({"usage": usage} if usage else {})},
        "scores": _scores(trajectory),
        "metadata": {
            "trajectory": trajectory.id,
            "complexity": trajectory.complexity,
            "stopped": trajectory.stop_reason.value,
            "group": trajectory.group_id,
            "seed": trajectory.seed,
        },
        "model_usage": {source.model: usage} if usage else {},
        "total_time": sum(turn.wall_s for turn in trajectory.turns),
        "uuid": _digest(source.run, source.name, trajectory.id, epoch),
        "error": _error(trajectory),
        "limit": _limit(trajectory),
        "turn_count": len(trajectory.turns),
    }


def _messages(source: Source, trajectory: Trajectory) -> Iterator[JsonObject]:
    """The conversation as it was held; what did not parse is a call with a parse error."""
    for i, message in enumerate(trajectory.prompt):
        role = message.get("role")
        yield {
            "id": f"prompt-{i}",
            "role": role if role in ("system", "user", "assistant") else "user",
            "content": _text(message.get("content")),
            "source": "input",
        }
    for turn in trajectory.turns:
        calls = [_call(call) for call in turn.tool_calls]
        calls += [_unparsed(turn, i, failure) for i, failure in enumerate(turn.parse_failures)]
        yield {
            "id": f"turn-{turn.index}",
            "role": "assistant",
            "content": turn.completion.text,
            "source": "generate",
            "model": source.model,
            **({"tool_calls": calls} if calls else {}),
        }
        for i, result in enumerate(turn.tool_results):
            yield _result(f"result-{turn.index}-{i}", result)
        if turn.user_message is not None:
            yield {"id": f"user-{turn.index}", "role": "user", "content": turn.user_message}


def _call(call: ToolCall) -> JsonObject:
    name = f"{call.server}.{call.tool}" if call.server else call.tool
    return {"id": call.id, "function": name, "arguments": call.arguments, "type": "function"}


def _unparsed(turn: Turn, place: int, failure: ParseFailure) -> JsonObject:
    return {
        "id": f"unparsed-{turn.index}-{place}",
        "function": "unparsed",
        "arguments": {"raw": failure.raw},
        "parse_error": failure.reason,
        "type": "function",
    }


def _result(message_id: str, result: ToolResult) -> JsonObject:
    message: JsonObject = {
        "id": message_id,
        "role": "tool",
        "content": result.content,
        "tool_call_id": result.call_id,
        "function": f"{result.server}.{result.tool}" if result.server else result.tool,
        "metadata": {"latency_s": result.latency_s, "from_cassette": result.from_cassette},
    }
    if result.is_error or result.failure is not None:
        kind = result.failure
        said = result.content if kind is None else f"{kind.value}: {result.content}"
        message["error"] = {"type": _ERRORS.get(kind, "unknown") if kind else "unknown", "message": said}
    return message


def _scores(trajectory: Trajectory) -> JsonObject:
    """None for an episode that could not be scored: it has no score, which is not a score of 0."""
    scores: JsonObject = {}
    if trajectory.is_success is not None:
        scores["success"] = {
            "value": "C" if trajectory.is_success else "I",
            "answer": trajectory.final_answer,
        }
    if trajectory.reward is not None:
        scores["reward"] = {"value": trajectory.reward}
    terms = {term.name: term.value for term in trajectory.reward_terms}
    if any(value is not None for value in terms.values()):
        weights = {term.name: term.weight for term in trajectory.reward_terms if term.weight}
        scores["terms"] = {"value": terms, "metadata": {"weights": weights}}
    return scores


def _usage(trajectory: Trajectory) -> JsonObject:
    """What the model read and wrote at each of its steps, together; {} where nothing counted it."""
    read = written = context = 0
    costs: list[float] = []
    for turn in trajectory.turns:
        done = turn.completion
        if done.usage is not None:
            read += done.usage.input_tokens
            written += done.usage.output_tokens
            costs += [] if done.usage.cost_usd is None else [done.usage.cost_usd]
        else:
            context += len(turn.added_token_ids)
            read += context
            written += len(done.token_ids)
            context += len(done.token_ids)
    if not read and not written:
        return {}
    usage: JsonObject = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return usage | ({"total_cost": sum(costs)} if costs else {})


def _stop_reason(turn: Turn) -> str:
    return _STOPS.get(turn.completion.finish_reason, "tool_calls" if turn.tool_calls else "stop")


def _error(trajectory: Trajectory) -> JsonObject | None:
    """Of an episode that could not be scored."""
    if trajectory.stop_reason is not StopReason.FAILED and not trajectory.errors:
        return None
    message = "\n".join(trajectory.errors) or "a server or the machinery failed: unscored"
    return {"message": message, "traceback": message, "traceback_ansi": message}


def _limit(trajectory: Trajectory) -> JsonObject | None:
    """The limit that ended the episode, with how far the episode had come."""
    kind = _LIMITS.get(trajectory.stop_reason)
    if kind is None:
        return None
    completions = [len(turn.completion.token_ids) for turn in trajectory.turns]
    reached = {
        "turn": len(trajectory.turns),
        "token": completions[-1] if completions else 0,
        "context": sum(completions) + sum(len(turn.added_token_ids) for turn in trajectory.turns),
        "time": sum(turn.wall_s for turn in trajectory.turns),
        "custom": trajectory.call_count,
    }[kind]
    return {"type": kind, "limit": reached, "reason": trajectory.stop_reason.value.replace("_", " ")}


def _header(source: Source, totals: _Totals) -> JsonObject:
    manifest, count = source.manifest, len(totals.summaries)
    ended = datetime.fromtimestamp(source.records.stat().st_mtime, UTC).isoformat(timespec="seconds")
    created = str(manifest.get("created_at") or ended)
    usage = {source.model: dict(totals.usage)} if totals.usage else {}
    spec: JsonObject = {
        "eval_id": _digest(source.run, source.name, "eval"),
        "run_id": _digest(source.run, "run"),
        "created": created,
        "task": source.name,
        "task_id": _digest(source.name, "task"),
        "dataset": {
            "name": source.name,
            "samples": len(totals.sample_ids),
            "sample_ids": totals.sample_ids,
            "shuffled": False,
        },
        "model": source.model,
        "config": {"epochs": totals.epochs},
        "packages": {name: str(v) for name, v in (manifest.get("versions") or {}).items()},
        "metadata": {"run": source.run, "seed": manifest.get("seed")},
    }
    git = manifest.get("git")
    if isinstance(git, dict) and git.get("commit"):
        spec["revision"] = {"type": "git", "origin": "", "commit": git["commit"]}
    return {
        "version": _VERSION,
        "status": "success",
        "eval": spec,
        "plan": {},
        "results": _results(source, totals, count),
        "stats": {"started_at": created, "completed_at": ended, "model_usage": usage},
    }


def _results(source: Source, totals: _Totals, count: int) -> JsonObject:
    unscored = count - len(totals.successes)
    scores = [
        {
            "name": name,
            "scorer": name,
            "scored_samples": len(values),
            "unscored_samples": unscored,
            "metrics": {metric: {"name": metric, "value": sum(values) / len(values)}},
        }
        for name, metric, values in (
            ("success", "accuracy", totals.successes),
            ("reward", "mean", totals.rewards),
        )
        if values
    ]
    measured = source.evaluation.metrics if source.evaluation is not None else {}
    return {
        "total_samples": count,
        "completed_samples": count,
        "scores": scores,
        "metadata": {name: metric.model_dump() for name, metric in measured.items()},
    }


def _write(archive: ZipFile, name: str, document: object) -> None:
    """An entry without the time of writing: the same episodes give the same bytes."""
    entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    archive.writestr(entry, json.dumps(document, separators=(",", ":")))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)


def _digest(*parts: object) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=11).hexdigest()


def _stem(path: Path) -> str:
    return path.name.split(".", 1)[0]
