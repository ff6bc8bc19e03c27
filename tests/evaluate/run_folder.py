"""A run folder as training and evaluation write it, with trajectories built by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.evaluate.summary import summarise
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.tools.limits import BreakerState
from mcpagent.tools.metrics import CallCounts, PoolMetrics, ServerMetrics
from tests.env.world import make_task
from tests.evaluate.records import call, result, trajectory, turn
from tests.run.world import with_id

LEVELS = ("simple", "moderate", "complex")


def step_row(step: int, *, steps: int = 30) -> JsonObject:
    """Metrics of one step of a run that learns: reward rises, KL stays small, memory is flat."""
    progress = step / steps
    wave = math.sin(7.0 * step) * 0.03
    success = 0.3 + 0.55 * progress + wave
    return {
        "step": step,
        "reward_mean": 0.25 + 0.5 * progress + wave,
        "success_rate": success,
        "success_simple": min(1.0, success + 0.15),
        "success_moderate": success,
        "success_complex": max(0.0, success - 0.2),
        "kl": 0.15 * progress + abs(wave) / 3,
        "clip_fraction": 0.04 + abs(wave),
        "entropy": 0.42 - 0.2 * progress + wave / 4,
        "grad_norm": 0.9 + 8 * abs(wave),
        "loss": wave,
        "drift_share": 0.002 + abs(wave) / 10,
        "uniform_share": (3 + round(6 * progress)) / 12,
        "episodes": 96,
        "unscored": 0,
        "rss_mb": 812.0 + 2 * wave,
        "cpu_s": 1.9 + wave,
        "rollout_cpu_s": 1.2 + wave,
        "update_cpu_s": 0.7 + wave / 2,
        "tokens": 21_000,
    }


def learned(index: int, attempt: int = 0, *, before: bool) -> Trajectory:
    """Task `index` of the held-out set: before training every third one succeeds, afterwards most do."""
    level = LEVELS[index % 3]
    fails = (index + attempt) % 3 != 0 if before else (index + attempt) % 8 == 5
    question = f"How far above its close of 2024-03-01 did stock number {index} end a week later?"
    first = call(0, ticker=f"S{index}", date="2024-03-01")
    turns = [turn(0, '<tool_call>{"name": "get_aggs"}</tool_call>', calls=[first], results=[result(0)])]
    if fails:
        answer = "I could not find it."
        turns.append(turn(1, answer))
    else:
        second = call(1, ticker=f"S{index}", date="2024-03-08")
        turns += [
            turn(1, '<tool_call>{"name": "get_aggs"}</tool_call>', calls=[second], results=[result(1)]),
            turn(2, "It ended 4.20 higher."),
        ]
        answer = "It ended 4.20 higher."
    return trajectory(
        f"held-out-{index:03d}",
        attempt=attempt,
        complexity=level,
        success=float(not fails),
        partial=0.5 if fails else 1.0,
        turns=turns,
        final_answer=answer,
        question=question,
        coverage=0.5 if fails else 1.0,
        answer=float(not fails),
        invalid_rate=0.0,
        sequence_exact=float(not fails),
    )


def write_run(
    folder: Path, *, tasks: int = 48, hook: Callable[[Trajectory], Trajectory] | None = None
) -> Path:
    """A whole run; `hook` may change every greedy trajectory after training."""
    folder.mkdir(parents=True)
    lines = [json.dumps(step_row(step)) for step in range(1, 31)]
    lines[-1] = json.dumps(step_row(30) | {"tool_metrics": tool_metrics().model_dump(mode="json")})
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text("seed: 3\ngrpo:\n  target_kl: 0.1\n")
    manifest = {
        "title": "Quickstart: a small agent learns four MCP servers",
        "about": "A 0.44 M-parameter model, built for this demonstration, was warm-started on demonstrations "
        "of mixed quality and then trained with GRPO on real tool calls. It shows that the loop works; it "
        "says nothing about how large models behave.",
        "command": "mcpagent quickstart --seed 3",
        "seed": 3,
        "versions": {"mcpagent": "0.1.0", "torch": "2.13.0", "transformers": "5.19.0"},
        "hashes": {"catalog": "9f2c1e", "data": "77ab03"},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name, before in (("warm_start", True), ("trained", False)):
        greedy = [learned(i, before=before) for i in range(tasks)]
        if hook is not None and not before:
            greedy = [hook(t) for t in greedy]
        sampled = [learned(i, a, before=before) for i in range(tasks) for a in range(4)]
        write_evaluation(folder, name, greedy, temperature=0.0)
        write_evaluation(folder, f"{name}_sampled", sampled, temperature=1.0)
    controls = [
        {
            "name": "random rewards",
            "what": "the same steps with shuffled rewards",
            "cpu_s": 58.0,
            "greedy": {"value": 0.36, "ci_low": 0.3, "ci_high": 0.43, "n": tasks},
            "sampled": {"value": 0.37, "ci_low": 0.33, "ci_high": 0.42, "n": tasks},
        },
        {"name": "more demonstrations", "what": "supervised steps for the same CPU time", "cpu_s": 58.0},
    ]
    (folder / "eval" / "controls.json").write_text(json.dumps(controls))
    return folder


def tool_metrics() -> PoolMetrics:
    """One server with a restart, and two of its tools."""
    counts = CallCounts()
    counts.restarts = 2
    calls = [("get_aggs", 0.010, None)] * 1199 + [("get_aggs", 3.0, FailureKind.TIMEOUT)]
    calls += [("get_news", 0.020, FailureKind.TOOL_ERROR)] * 3 + [("get_news", 0.0, FailureKind.CRASHED)]
    for tool, latency_s, failure in calls:
        counts.note(
            ToolResult(
                call_id="1", server="polygon", tool=tool, content="", latency_s=latency_s, failure=failure
            ),
            waited_s=0.0,
            sendings=1 if latency_s else 0,
        )
    server = ServerMetrics(
        server="polygon",
        in_flight=0,
        most_in_flight=8,
        restarts=counts.restarts,
        breaker=BreakerState.CLOSED,
        next_try_s=0.0,
        waited_s=0.0,
        waited_max_s=0.0,
        tools=counts.tools(),
    )
    return PoolMetrics(servers=(server,))


def write_evaluation(folder: Path, name: str, episodes: list[Trajectory], *, temperature: float) -> None:
    levels = {episode.task_id: episode.complexity for episode in episodes}
    tasks = [with_id(make_task(complexity=level), task_id) for task_id, level in levels.items()]
    document = summarise(episodes, tasks=tasks).with_provenance(
        {"checkpoint": name, "temperature": temperature}
    )
    path = folder / "eval" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(document.model_dump_json())
    write_trajectories(folder / "trajectories" / f"eval_{name}", episodes)


def lost_call(number: int) -> Trajectory:
    """A call that a dying server never answered: infrastructure, unscored."""
    failed = result(number, "", failure=FailureKind.CRASHED, nonce=None)
    return trajectory(
        f"lost-{number}",
        success=None,
        stop_reason=StopReason.FAILED,
        turns=[turn(0, "call", calls=[call(number)], results=[failed])],
    )
