"""Stored episodes as logs that Inspect's viewer opens: one `.eval` file for each file of trajectories.

The format is that of inspect_ai's EvalLog, version 2: a ZIP with header.json, summaries.json and a JSON file
for each sample. Episodes are written as they are read: a large file needs no more memory than a small one,
but for its list of summaries.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.core.trajectory import StopReason, Trajectory, Turn
from mcpagent.errors import UserError
from mcpagent.evaluate.report.episodes import (
    called,
    gold_plan,
    gold_tasks,
    question,
    stem_of,
    trajectory_files,
)
from mcpagent.evaluate.report.run_data import read_config, read_evaluations, read_object
from mcpagent.evaluate.summary import EvalResult
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, read_trajectories

_VERSION = 2  # of the log's schema
_SUMMARY_CHARS = 1000  # of a question in the list of samples
_LIMITS = {
    StopReason.MAX_TURNS: "turn",
    StopReason.MAX_TOKENS: "token",
    StopReason.CONTEXT_OVERFLOW: "context",
    StopReason.TIMEOUT: "time",
    StopReason.MAX_TOOL_CALLS: "custom",
    StopReason.LIMIT: "custom",
}
_ERRORS = {FailureKind.INVALID_ARGUMENTS: "parsing", FailureKind.TIMEOUT: "timeout"}


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
        """The name of the model that played, as far as it is recorded; of a folder its last part."""
        provenance = {} if self.evaluation is None else self.evaluation.provenance
        policy, configured = provenance.get("policy") or {}, self.config.get("model") or {}
        played = policy.get("path") or policy.get("name") or configured.get("name")
        name = Path(str(played or self.run or "unknown"))
        return f"{self.run}/{name.name}" if name.is_absolute() else str(name)


def sources(path: Path) -> list[Source]:
    """Return the trajectory files of a run folder, or the one file that `path` is. Raises UserError without
    any."""
    if path.is_file() and path.name.endswith(RECORDS_SUFFIXES):
        return [Source(path, stem_of(path))]
    files = trajectory_files(path / "trajectories")
    if not files:
        raise UserError(
            "holds no trajectories",
            where=str(path),
            remedy="name a run folder after its first step, or a file of trajectories",
        )
    _, config = read_config(path)
    evaluations = read_evaluations(path / "eval")
    manifest = read_object(path / "manifest.json")
    plans = {name: gold_plan(task) for name, task in gold_tasks(config).items()}
    return [
        Source(
            file,
            stem,
            run=path.resolve().name,
            manifest=manifest,
            config=config,
            evaluation=evaluations.get(stem.removeprefix("eval_")),
            plans=plans,
        )
        for stem, file in files.items()
    ]


def write_log(source: Source, path: Path) -> int:
    """Write the episodes of a source as one `.eval` file and return their number; an older file stays as it
    was until the new one is whole. Raises UserError."""
    summaries: list[JsonObject] = []
    epochs: dict[str, set[int]] = defaultdict(set)
    with atomic_file(path) as temporary, ZipFile(temporary, "w", ZIP_DEFLATED) as archive:
        for trajectory in read_trajectories(source.records):
            taken, epoch = epochs[trajectory.task_id], trajectory.attempt + 1
            if epoch in taken:  # a step may draw a task twice
                epoch = max(taken) + 1
            taken.add(epoch)
            sample = _sample(source, trajectory, epoch)
            _write(archive, f"samples/{sample['id']}_epoch_{epoch}.json", sample)
            summaries.append(_summary(trajectory, sample))
        header = _header(source, summaries)
        _write(archive, "_journal/start.json", {k: header[k] for k in ("version", "eval", "plan")})
        _write(archive, "summaries.json", summaries)
        _write(archive, "header.json", header)
    return len(summaries)


def _sample(source: Source, trajectory: Trajectory, epoch: int) -> JsonObject:
    messages = list(_messages(source, trajectory))
    usage, is_lost = _usage(trajectory), trajectory.stop_reason is StopReason.FAILED or trajectory.errors
    error = "\n".join(trajectory.errors) or "a server or the machinery failed: unscored"
    return {
        "id": trajectory.task_id,
        "epoch": epoch,
        "input": messages[: len(trajectory.prompt)] or question(trajectory),
        "target": list(source.plans.get(trajectory.task_id, ())) or "",
        "messages": messages,
        "scores": _scores(trajectory),
        "metadata": {
            "trajectory": trajectory.id,
            "complexity": trajectory.complexity,
            "stopped": trajectory.stop_reason.value,
            "seed": trajectory.seed,
        },
        "model_usage": {source.model: usage} if usage else {},
        "total_time": sum(turn.wall_s for turn in trajectory.turns),
        "uuid": _digest(source.run, source.name, trajectory.id, epoch),
        "error": {"message": error, "traceback": error, "traceback_ansi": error} if is_lost else None,
        "limit": _limit(trajectory),
    }


def _summary(trajectory: Trajectory, sample: JsonObject) -> JsonObject:
    """Return the line of a sample in the list of all."""
    kept = ("id", "epoch", "target", "metadata", "scores", "model_usage", "total_time", "uuid")
    return {
        **{name: sample[name] for name in kept},
        "input": question(trajectory)[:_SUMMARY_CHARS],
        "error": sample["error"] and sample["error"]["message"],
        "limit": sample["limit"] and sample["limit"]["type"],
        "completed": True,
        "message_count": len(sample["messages"]),
    }


def _messages(source: Source, trajectory: Trajectory) -> Iterator[JsonObject]:
    """Yield the conversation as it was held."""
    for i, message in enumerate(trajectory.prompt):
        yield {"id": f"prompt-{i}", "role": message["role"], "content": message["content"], "source": "input"}
    for turn in trajectory.turns:
        yield {
            "id": f"turn-{turn.index}",
            "role": "assistant",
            "content": turn.completion.text,
            "source": "generate",
            "model": source.model,
            "tool_calls": list(_calls(turn)) or None,
        }
        for i, result in enumerate(turn.tool_results):
            yield _result(f"result-{turn.index}-{i}", result)
        if turn.user_message is not None:
            yield {"id": f"user-{turn.index}", "role": "user", "content": turn.user_message}


def _calls(turn: Turn) -> Iterator[JsonObject]:
    """Yield the calls of a turn; what did not parse is a call with a parse error."""
    for call in turn.tool_calls:
        yield {"id": call.id, "function": called(call), "arguments": call.arguments, "type": "function"}
    for place, failure in enumerate(turn.parse_failures):
        yield {
            "id": f"unparsed-{turn.index}-{place}",
            "function": "unparsed",
            "arguments": {"raw": failure.raw},
            "parse_error": failure.reason,
            "type": "function",
        }


def _result(message_id: str, result: ToolResult) -> JsonObject:
    error = None
    if result.is_error or result.failure is not None:
        kind = "unknown" if result.failure is None else _ERRORS.get(result.failure, "unknown")
        error = {"type": kind, "message": f"{result.failure or 'error'}: {result.content}"}
    return {
        "id": message_id,
        "role": "tool",
        "content": result.content,
        "tool_call_id": result.call_id,
        "function": called(result),
        "metadata": {"latency_s": result.latency_s, "from_cassette": result.from_cassette},
        "error": error,
    }


def _scores(trajectory: Trajectory) -> JsonObject:
    """Return no score for an episode that could not be scored, which is not a score of 0."""
    scores: JsonObject = {}
    if trajectory.is_success is not None:
        success = "C" if trajectory.is_success else "I"
        scores["success"] = {"value": success, "answer": trajectory.final_answer}
    if trajectory.reward is not None:
        scores["reward"] = {"value": trajectory.reward}
    if trajectory.reward_terms:
        scores["terms"] = {"value": {term.name: term.value for term in trajectory.reward_terms}}
    return scores


def _usage(trajectory: Trajectory) -> JsonObject:
    """Return the tokens that the model read and wrote at all of its steps; {} if they were not counted."""
    read = written = context = 0
    for turn in trajectory.turns:
        done = turn.completion
        context += len(turn.added_token_ids)
        read += context if done.usage is None else done.usage.input_tokens
        written += len(done.token_ids) if done.usage is None else done.usage.output_tokens
        context += len(done.token_ids)
    total = read + written
    return {"input_tokens": read, "output_tokens": written, "total_tokens": total} if total else {}


def _limit(trajectory: Trajectory) -> JsonObject | None:
    """Return the limit that ended the episode, and how far it had come."""
    kind = _LIMITS.get(trajectory.stop_reason)
    if kind is None:
        return None
    written = [len(turn.completion.token_ids) for turn in trajectory.turns]
    reached = {
        "turn": len(trajectory.turns),
        "token": written[-1] if written else 0,
        "context": sum(written) + sum(len(turn.added_token_ids) for turn in trajectory.turns),
        "time": sum(turn.wall_s for turn in trajectory.turns),
        "custom": trajectory.call_count,
    }[kind]
    return {"type": kind, "limit": reached, "reason": trajectory.stop_reason.value.replace("_", " ")}


def _header(source: Source, summaries: Sequence[JsonObject]) -> JsonObject:
    manifest, ids = source.manifest, list(dict.fromkeys(summary["id"] for summary in summaries))
    ended = datetime.fromtimestamp(source.records.stat().st_mtime, UTC).isoformat(timespec="seconds")
    created = str(manifest.get("created_at") or ended)
    used: Counter[str] = Counter()
    for summary in summaries:
        used.update(summary["model_usage"].get(source.model, {}))
    return {
        "version": _VERSION,
        "status": "success",
        "eval": {
            "eval_id": _digest(source.run, source.name, "eval"),
            "run_id": _digest(source.run, "run"),
            "created": created,
            "task": source.name,
            "task_id": _digest(source.name, "task"),
            "dataset": {"name": source.name, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": source.model,
            "config": {"epochs": max((summary["epoch"] for summary in summaries), default=1)},
            "packages": {name: str(version) for name, version in manifest.get("versions", {}).items()},
            "metadata": {"run": source.run, "seed": manifest.get("seed")},
        },
        "plan": {},
        "results": _results(source, summaries),
        "stats": {
            "started_at": created,
            "completed_at": ended,
            "model_usage": {source.model: dict(used)} if used else {},
        },
    }


def _results(source: Source, summaries: Sequence[JsonObject]) -> JsonObject:
    scores: list[JsonObject] = []
    for name, metric in (("success", "accuracy"), ("reward", "mean")):
        values = [summary["scores"][name]["value"] for summary in summaries if name in summary["scores"]]
        numbers: list[Any] = [{"C": 1.0, "I": 0.0}.get(value, value) for value in values]
        if numbers:
            metrics = {metric: {"name": metric, "value": fmean(numbers)}}
            unscored = len(summaries) - len(numbers)
            scored = {"scored_samples": len(numbers), "unscored_samples": unscored}
            scores.append({"name": name, "scorer": name, "metrics": metrics, **scored})
    measured = {} if source.evaluation is None else source.evaluation.metrics
    return {
        "total_samples": len(summaries),
        "completed_samples": len(summaries),
        "scores": scores,
        "metadata": {name: metric.model_dump() for name, metric in measured.items()},
    }


def _write(archive: ZipFile, name: str, document: object) -> None:
    """Write an entry without the time of writing: the same episodes give the same bytes."""
    entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    archive.writestr(entry, json.dumps(document, separators=(",", ":")))


def _digest(*parts: object) -> str:
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=11).hexdigest()
