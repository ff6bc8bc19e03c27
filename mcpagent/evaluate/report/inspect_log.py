"""Stored episodes as logs that Inspect's viewer opens: one `.eval` file for each file of trajectories."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from inspect_ai import log as inspect
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ModelUsage,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall, ToolCallError

from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.core.trajectory import StopReason, Trajectory, Turn
from mcpagent.evaluate.report.episodes import called, question
from mcpagent.evaluate.report.run_data import read_config, read_evaluations
from mcpagent.evaluate.summary import EvalResult
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.trajectories import read_trajectories

_ROLES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}


def write_log(records: Path, path: Path, *, run_dir: Path | None) -> None:
    """Write a file of trajectories as one `.eval` file; an older file stays as it was until the new one is
    whole. Raises UserError."""
    stem, run = path.stem, "" if run_dir is None else run_dir.resolve().name
    evaluations = {} if run_dir is None else read_evaluations(run_dir / "eval")
    evaluation = evaluations.get(stem.removeprefix("eval_"))
    model = _model(run_dir, evaluation)
    epochs: Counter[str] = Counter()  # a step may draw a task twice, with the same attempts
    samples: list[inspect.EvalSample] = []
    for trajectory in read_trajectories(records, with_tokens=False):
        epochs[trajectory.task_id] += 1
        samples.append(_sample(trajectory, epochs[trajectory.task_id], model))
    ended = datetime.fromtimestamp(records.stat().st_mtime, UTC).isoformat(timespec="seconds")
    measured = {} if evaluation is None else evaluation.metrics
    log = inspect.EvalLog(
        status="success",
        eval=inspect.EvalSpec(
            created=ended,
            task=stem,
            dataset=inspect.EvalDataset(name=stem, samples=len(epochs), sample_ids=list(epochs)),
            model=model,
            config=inspect.EvalConfig(epochs=max(epochs.values(), default=1)),
            metadata={"run": run},
        ),
        results=inspect.EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[score for name in ("success", "reward") if (score := _mean(name, samples)) is not None],
            metadata={name: metric.model_dump() for name, metric in measured.items()},
        ),
        samples=samples,
    )
    with atomic_file(path) as temporary:
        inspect.write_eval_log(log, temporary, format="eval")


def _model(run_dir: Path | None, evaluation: EvalResult | None) -> str:
    """Return the name of the model that played, as far as it is recorded; of a folder its last part."""
    policy = {} if evaluation is None else evaluation.provenance.get("policy") or {}
    name = policy.get("path") or policy.get("name")
    if name is None and run_dir is not None:
        _, config = read_config(run_dir)
        name = (config.get("model") or {}).get("name")
    return Path(name or "unknown").name


def _sample(trajectory: Trajectory, epoch: int, model: str) -> inspect.EvalSample:
    messages = list(_messages(trajectory, model))
    is_lost = trajectory.stop_reason is StopReason.FAILED or trajectory.errors
    error = "\n".join(trajectory.errors) or "a server or the machinery failed: unscored"
    stopped = trajectory.stop_reason.value
    was_cut = trajectory.stop_reason not in (StopReason.ANSWERED, StopReason.FAILED)
    return inspect.EvalSample(
        id=trajectory.task_id,
        epoch=epoch,
        input=messages[: len(trajectory.prompt)] or question(trajectory),
        target="",
        messages=messages,
        scores=dict(_scores(trajectory)),
        metadata={
            "trajectory": trajectory.id,
            "complexity": trajectory.complexity,
            "stopped": stopped,
            "seed": trajectory.seed,
        },
        model_usage={model: _usage(trajectory)},
        total_time=sum(turn.wall_s for turn in trajectory.turns),
        error=inspect.EvalError(message=error, traceback=error, traceback_ansi=error) if is_lost else None,
        limit=inspect.EvalSampleLimit(type="custom", limit=0, reason=stopped) if was_cut else None,
    )


def _messages(trajectory: Trajectory, model: str) -> Iterator[ChatMessage]:
    """Yield the conversation as it was held."""
    for message in trajectory.prompt:
        yield _ROLES[message["role"]](content=message["content"], source="input")
    for turn in trajectory.turns:
        yield ChatMessageAssistant(
            content=turn.completion.text, source="generate", model=model, tool_calls=list(_calls(turn))
        )
        yield from map(_result, turn.tool_results)
        if turn.user_message is not None:
            yield ChatMessageUser(content=turn.user_message)


def _calls(turn: Turn) -> Iterator[ToolCall]:
    """Yield the calls of a turn; what did not parse is a call with a parse error."""
    for call in turn.tool_calls:
        yield ToolCall(id=call.id, function=called(call), arguments=call.arguments)
    for place, failure in enumerate(turn.parse_failures):
        name, raw = f"unparsed-{turn.index}-{place}", {"raw": failure.raw}
        yield ToolCall(id=name, function="unparsed", arguments=raw, parse_error=failure.reason)


def _result(result: ToolResult) -> ChatMessage:
    error = None
    if result.is_error or result.failure is not None:
        kind = "timeout" if result.failure is FailureKind.TIMEOUT else "unknown"
        error = ToolCallError(kind, f"{result.failure or 'error'}: {result.content}")
    return ChatMessageTool(
        content=result.content,
        tool_call_id=result.call_id,
        function=called(result),
        metadata={"latency_s": result.latency_s, "from_cassette": result.from_cassette},
        error=error,
    )


def _scores(trajectory: Trajectory) -> Iterator[tuple[str, Score]]:
    """Yield no score for an episode that could not be scored, which is not a score of 0."""
    if trajectory.is_success is not None:
        yield "success", Score(value=float(trajectory.is_success), answer=trajectory.final_answer)
    if trajectory.reward is not None:
        yield "reward", Score(value=trajectory.reward)
    if trajectory.reward_terms:
        yield "terms", Score(value={term.name: term.value for term in trajectory.reward_terms})


def _mean(name: str, samples: Sequence[inspect.EvalSample]) -> inspect.EvalScore | None:
    values = [sample.scores[name].as_float() for sample in samples if sample.scores and name in sample.scores]
    if not values:
        return None
    return inspect.EvalScore(
        name=name,
        scorer=name,
        metrics={"mean": inspect.EvalMetric(name="mean", value=fmean(values))},
        scored_samples=len(values),
        unscored_samples=len(samples) - len(values),
    )


def _usage(trajectory: Trajectory) -> ModelUsage:
    """Return the tokens that a model behind an API says it read and wrote."""
    used = [turn.completion.usage for turn in trajectory.turns if turn.completion.usage is not None]
    read, written = sum(u.input_tokens for u in used), sum(u.output_tokens for u in used)
    return ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
