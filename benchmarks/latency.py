"""Do slow tools slow the sampling down? 64 episodes in flight, real calls to tools that take 0.5 to 5 s.

Episodes follow one another, so that 64 are open until the last has begun; what is counted ends there: sampled
tokens by second of wall time and by CPU second. The model and the turns are large enough that sampling a turn
of 64 takes longer than a tool does; with less work than that, no scheduler can keep a processor busy.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.forced import ForcedPolicy, forced_rows
from benchmarks.w3 import LOOKUP_SERVER
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.models.tokens import Renderer
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.hf.policy import HFPolicy
from mcpagent.policy.hf.slot_engine import SlotEngine
from mcpagent.policy.scripted import call_text
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.tools.pool import ToolPool

IN_FLIGHT = 64
CALLS = 2
_MAX_CONTEXT = 4096


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Sampled tokens by second while all episodes that may be open were; one of them took `episode_s`."""

    tokens: int
    wall_s: float
    cpu_s: float
    episode_s: float


async def measure(
    model: Any,
    renderer: Renderer,
    *,
    slow: bool,
    episodes: int = 2 * IN_FLIGHT,
    filler: int = 96,
    in_flight: int = IN_FLIGHT,
    between: tuple[float, float] = (0.5, 5.0),
) -> Throughput:
    """`filler` is how many tokens a turn has besides its call; slow tools take `between` so many seconds."""
    rng = random.Random(0)
    tasks = [
        Task.model_validate(
            {
                "prompt": [{"role": "user", "content": f"Look up item-{number}." + " the" * 64}],
                "reward_spec": {
                    "ground_truth": {"task_id": f"t{number}", "success": {"must_call_tool": "lookup.wait"}}
                },
                "extra_info": {"tools": ["lookup.wait"]},
            }
        )
        for number in range(episodes)
    ]
    seconds = {(t.id, turn): rng.uniform(*between) if slow else 0.0 for t in tasks for turn in range(CALLS)}

    def script(request: CompletionRequest) -> tuple[int, ...]:
        task_id, _, _ = request.episode_id.partition("#")
        turn = sum(message["role"] == "tool" for message in request.messages)
        text = " the" * filler
        if turn < CALLS:
            text += call_text("wait", {"key": task_id, "seconds": seconds[task_id, turn]})
        return renderer.action_ids(text)

    policy = HFPolicy(
        model,
        decode=renderer.decode,
        stop_ids=renderer.stop_ids,
        max_context=_MAX_CONTEXT,
        slots=in_flight,
        sample=forced_rows,
    )
    engine = policy.engine
    assert isinstance(engine, SlotEngine)
    found: list[Throughput] = []
    done = 0

    def on_done(trajectory: Trajectory) -> None:
        nonlocal done
        assert not trajectory.errors, trajectory.errors
        done += 1
        if done == episodes - in_flight:
            wall_s = time.perf_counter() - wall
            found.append(
                Throughput(
                    tokens=engine.sampled_tokens,
                    wall_s=wall_s,
                    episode_s=in_flight * wall_s / done,
                    cpu_s=time.process_time() - cpu,
                )
            )

    try:
        async with ToolPool([LOOKUP_SERVER]) as pool:
            wall, cpu = time.perf_counter(), time.process_time()
            await collect(
                list(attempts(tasks, per_task=1, seed=0)),
                policy=ForcedPolicy(policy, script),
                tools=pool,
                settings=AgentSettings(sampling=Sampling(), max_context_tokens=_MAX_CONTEXT),
                renderer=renderer,
                concurrency=in_flight,
                deterministic=False,
                on_done=on_done,
            )
    finally:
        policy.close()
    return found[0]
