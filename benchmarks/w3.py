"""W3: groups of multi-turn episodes with real forward passes and real MCP calls over stdio.

A group of episodes for each of some prompts; in each, `calls` turns of filler and a tool call, then a final
text. The tokens are forced, so everyone does the same work. The floor is that work with nothing around it:
one transformers cache for all rows, kept over the turns, every row in step with the others, each call made by
the bare SDK.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch
from mcp import Client, StdioServerParameters, stdio_client
from transformers import DynamicCache

from benchmarks.forced import ForcedPolicy, forced_rows
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.models.adapters import MergedCopy, causal_lm
from mcpagent.models.tokens import Renderer
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.hf.policy import HFPolicy
from mcpagent.policy.hf.slot_engine import SlotEngine
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import StdioServer

_SERVER = ("-m", "benchmarks.lookup_server")
LOOKUP_SERVER = StdioServer(name="lookup", command=sys.executable, args=_SERVER)
_MAX_CONTEXT = 8192


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every side does."""

    tasks: int = 1
    group: int = 8
    calls: int = 4
    prompt_words: int = 256
    filler: int = 48  # tokens before each call

    @property
    def prompts(self) -> list[str]:
        """What the user says in each task: as many tokens."""
        return [f"Look up items {n}." + " the" * self.prompt_words for n in range(self.tasks)]

    def text(self, turn: int) -> str:
        """What the policy says in a turn, up to the end-of-turn token."""
        if turn == self.calls:
            return " the" * self.filler + f" done after {turn}"
        call = json.dumps({"name": "lookup", "arguments": {"key": f"item-{turn}"}})
        return " the" * self.filler + f"\n<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One rollout of all groups; CPU seconds are this process's, the server has its own."""

    cpu_s: float
    generated: int
    prefilled: int
    trajectories: tuple[Trajectory, ...] = ()


Side = Callable[[], Awaitable[Cost]]


@asynccontextmanager
async def ours(
    model: Any, renderer: Renderer, work: Work, *, deterministic: bool = True
) -> AsyncIterator[Side]:
    """The full path: collector, episodes, pool over stdio, HF policy with adapters merged for sampling."""
    merged = MergedCopy(model)
    policy = HFPolicy(
        merged.model,
        decode=renderer.decode,
        stop_ids=renderer.stop_ids,
        max_context=_MAX_CONTEXT,
        slots=work.tasks * work.group,
        sample=forced_rows,
    )
    engine = policy.engine
    assert isinstance(engine, SlotEngine)
    tasks = [
        Task.model_validate(
            {
                "prompt": [_user(text)],
                "reward_spec": {
                    "ground_truth": {"task_id": f"w3-{n}", "success": {"must_call_tool": "lookup.lookup"}}
                },
                "extra_info": {"tools": ["lookup.lookup"]},
            }
        )
        for n, text in enumerate(work.prompts)
    ]

    def script(request: CompletionRequest) -> tuple[int, ...]:
        return renderer.action_ids(work.text(sum(m["role"] == "tool" for m in request.messages)))

    async def run() -> Cost:
        sampled, prefilled, started = engine.sampled_tokens, engine.prefilled_tokens, time.process_time()
        merged.sync()
        policy.on_weights_changed()
        trajectories = await collect(
            list(attempts(tasks, per_task=work.group, seed=0)),
            policy=ForcedPolicy(policy, script),
            tools=pool,
            settings=AgentSettings(sampling=Sampling(), max_context_tokens=_MAX_CONTEXT),
            renderer=renderer,
            deterministic=deterministic,
        )
        cost = Cost(
            cpu_s=time.process_time() - started,
            generated=engine.sampled_tokens - sampled,
            prefilled=engine.prefilled_tokens - prefilled,
            trajectories=tuple(trajectories),
        )
        assert all(t.stop_reason is StopReason.ANSWERED for t in trajectories)
        assert all([r.is_error for r in t.tool_results] == [False] * work.calls for t in trajectories)
        return cost

    try:
        async with ToolPool([LOOKUP_SERVER]) as pool:
            yield run
    finally:
        policy.close()


@asynccontextmanager
async def floor(model: Any, renderer: Renderer, work: Work) -> AsyncIterator[Side]:
    """The same work by hand, with `model` as it is: adapters beside the weights, or merged into them."""
    loop = asyncio.get_running_loop()
    async with Client(stdio_client(StdioServerParameters(command=sys.executable, args=list(_SERVER)))) as sdk:
        found = (await sdk.list_tools()).tools[0]
        spec = ToolSpec(
            server="lookup",
            name=found.name,
            description=found.description or "",
            input_schema=found.input_schema,
        )
        schema = chat_schema("lookup", spec)

        def call(key: str) -> str:
            made = asyncio.run_coroutine_threadsafe(sdk.call_tool("lookup", {"key": key}), loop)
            return made.result().content[0].text  # type: ignore[union-attr]

        async def run() -> Cost:
            return await asyncio.to_thread(_by_hand, causal_lm(model), renderer, work, schema, call)

        yield run


def _user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


@torch.no_grad()
def _by_hand(
    model: Any, renderer: Renderer, work: Work, schema: JsonObject, call: Callable[[str], str]
) -> Cost:
    started = time.process_time()
    prompts = [list(renderer.prompt_ids([_user(text)], (schema,))) for text in work.prompts]
    cache = DynamicCache(config=model.config)
    generated, prefilled, rows = 0, sum(map(len, prompts)), work.tasks * work.group

    def forward(ids: list[list[int]]) -> torch.Tensor:
        out = model.model(input_ids=torch.tensor(ids), past_key_values=cache, use_cache=True)
        return out.last_hidden_state[:, -1]

    hidden = forward(prompts).repeat_interleave(work.group, 0)  # each prompt once for its group
    cache.batch_repeat_interleave(work.group)
    for turn in range(work.calls + 1):
        for token in renderer.action_ids(work.text(turn)):
            logits = model.lm_head(hidden).float()
            torch.multinomial(torch.softmax(logits, -1), 1)
            hidden = forward([[token]] * rows)
            generated += rows
        if turn < work.calls:
            answers = [call(f"item-{turn}") for _ in range(rows)]
            suffix = list(renderer.suffix_ids([{"role": "tool", "content": answers[0]}]))
            hidden = forward([suffix] * rows)
            prefilled += len(suffix) * rows
    return Cost(cpu_s=time.process_time() - started, generated=generated, prefilled=prefilled)
