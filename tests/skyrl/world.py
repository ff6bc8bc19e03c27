"""SkyRL's own classes around a scripted inference engine, over real MCP servers."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyrl.train.generators.base import BatchMetadata, TrajectoryID

from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.engines.skyrl.env import register
from mcpagent.engines.skyrl.generator import MCPGenerator
from mcpagent.engines.skyrl.task import skyrl_config
from mcpagent.env.tool_format import open_renderer

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "data" / "samples" / "train.jsonl"
SERVERS = ("polygon", "fmp", "tavily", "slack")
_REPLY = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.S)


def sample_records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()]


def chain_record() -> dict[str, Any]:
    """Three dependent calls: read a channel, quote what it names, post the price."""
    return next(r for r in sample_records() if r["extra_info"]["template"] == "channel-price-post")


RECORD = chain_record()
PLAN = RECORD["reward_spec"]["ground_truth"]["tool_sequence"]
TOKENIZER = train_tokenizer(
    ["\n".join(m["content"] for r in sample_records() for m in r["prompt"])], vocab_size=1000, catalog_hash=""
)


def row(*, truth: Mapping[str, Any] | None = None, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The record as SkyRL's dataset gives it, with text for what has no columns."""
    record = copy.deepcopy(RECORD)
    record["reward_spec"]["ground_truth"].update(truth or {})
    record["extra_info"].update(info or {})
    return {
        "prompt": record["prompt"],
        "extras": {
            "data_source": record["data_source"],
            "reward_spec": {
                "method": "rule",
                "ground_truth": json.dumps(record["reward_spec"]["ground_truth"]),
            },
            "extra_info": json.dumps(record["extra_info"]),
        },
    }


def stdio_servers(folder: Path, python: str) -> str:
    """The built-in servers as real processes."""
    path = folder / "mcp.json"
    servers = {n: {"command": python, "args": ["-m", "mcpagent", "serve", n, "--limited"]} for n in SERVERS}
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return str(path)


def call(name: str, **arguments: Any) -> str:
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


def gold(replies: list[Any]) -> str:
    """The next turn of the gold plan, from what the servers said so far."""
    channel, target = PLAN[0]["params"]["channel_id"], PLAN[2]["params"]["channel"]
    if not replies:
        return call(PLAN[0]["tool"], channel_id=channel, limit=1)
    if len(replies) == 1:
        return call(PLAN[1]["tool"], symbol=replies[0]["messages"][0]["text"].split()[-1])
    price = replies[1]["price"]
    if len(replies) == 2:
        return call(PLAN[2]["tool"], channel=target, message=str(price))
    return f"Posted.\nAnswer: {price}"


def stops_early(replies: list[Any]) -> str:
    return gold(replies) if len(replies) < 2 else "Done."


@dataclass
class ScriptedEngine:
    """SkyRL's inference engine with a script for each session. `cut`: sessions whose second turn ends by
    length; `before`: called with the session and its turn before each answer."""

    script: Callable[[str], Callable[[list[Any]], str]] = lambda _: gold
    cut: Callable[[str], bool] = lambda _: False
    before: Callable[[str, int], None] = lambda _session, _turn: None
    stop_reason: Callable[[str, int], str] = lambda _session, _turn: "stop"
    turns: dict[str, int] = field(default_factory=dict)
    open_now: set[str] = field(default_factory=set)
    most_open: int = 0
    finished: int = 0
    asked: list[list[int]] = field(default_factory=list)

    async def generate(self, request: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
        (ids,), (session,) = request["prompt_token_ids"], request["session_ids"]
        self.open_now.add(session)
        self.most_open = max(self.most_open, len(self.open_now))
        self.asked.append(list(ids))
        await asyncio.sleep(0)
        turn = self.turns[session] = self.turns.get(session, 0) + 1
        self.before(session, turn)
        replies = [json.loads(text) for text in _REPLY.findall(TOKENIZER.decode(ids))]
        text, reason = self.script(session)(replies), self.stop_reason(session, turn)
        out = TOKENIZER.encode(text, add_special_tokens=False)
        if turn == 2 and self.cut(session):
            out, reason = out[: len(out) // 2], "length"
        elif reason == "stop":
            out = [*out, TOKENIZER.eos_token_id]
        out = out[: request["sampling_params"]["max_tokens"]]
        logprobs = [-0.1 - (token % 7) / 100 for token in out]
        return {
            "responses": [TOKENIZER.decode(out, skip_special_tokens=True)],
            "response_ids": [out],
            "stop_reasons": [reason],
            "response_logprobs": [logprobs],
        }

    async def finish_session(self, session: str) -> None:
        self.open_now.discard(session)
        self.finished += 1


def generator(
    engine: Any,
    environment: Mapping[str, Any] | None = None,
    *,
    workers: int = 4,
    max_open: int = 64,
    max_failed_share: float = 0.5,
    context: int = 8192,
    **more: Any,
) -> MCPGenerator:
    register()
    cfg = skyrl_config(
        {
            "generator.max_turns": 6,
            "generator.max_input_length": context - 256,
            "generator.sampling_params.max_generate_length": 256,
            "environment.skyrl_gym.max_env_workers": workers,
        },
        environment or {},
    )
    return MCPGenerator(
        generator_cfg=cfg.generator,
        skyrl_gym_cfg=cfg.environment.skyrl_gym,
        inference_engine_client=engine,
        tokenizer=TOKENIZER,
        renderer=open_renderer(TOKENIZER, name="scripted"),
        max_open=max_open,
        max_failed_share=max_failed_share,
        **more,
    )


def batch(
    rows: Iterable[Mapping[str, Any]], *, group_size: int = 4, step: int = 1, phase: Any = "train"
) -> Any:
    """As SkyRL's trainer makes it: `group_size` rows in a row are attempts at one prompt."""
    rows = list(rows)
    ids = [TrajectoryID(str(i // group_size), i % group_size) for i in range(len(rows))]
    return {
        "prompts": [r["prompt"] for r in rows],
        "env_classes": ["MCPToolEnv"] * len(rows),
        "env_extras": [copy.deepcopy(r["extras"]) for r in rows],
        "sampling_params": None,
        "trajectory_ids": ids,
        "batch_metadata": BatchMetadata(global_step=step, training_phase=phase),
    }


def uids(rows: int, *, group_size: int = 4) -> list[str]:
    return [str(i // group_size) for i in range(rows)]


def play(maker: MCPGenerator, rows: Iterable[Mapping[str, Any]], **how: Any) -> Any:
    return asyncio.run(maker.generate(batch(rows, **how), disable_tqdm=True))


def scores(output: Mapping[str, Any]) -> list[float]:
    return [round(sum(rewards), 3) for rewards in output["rewards"]]
