"""The adapters as SkyRL drives them: `make` on one thread, `init`, `step` and `close` on others."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import skyrl_gym
from skyrl_gym.envs.registration import registry

from mcpagent.engines.skyrl.env import MCPToolEnv, MCPToolGroup, register
from mcpagent.errors import UserError
from tests.env.world import HISTORY, QUOTE, SEND, call

PROMPT = [{"role": "system", "content": "Tools."}, {"role": "user", "content": "Go."}]
PLAN = {"step": 1, "server": "fmp", "tool": QUOTE}


def quote_of_any() -> tuple[str, float]:
    group = MCPToolGroup()
    channel = json.loads(group.execute_tool("list_slack_channels", {"limit": 1}))["channels"][0]["id"]
    history = json.loads(group.execute_tool(HISTORY, {"channel_id": channel, "limit": 1}))
    ticker = history["messages"][0]["text"].split()[-1]
    price = json.loads(group.execute_tool(QUOTE, {"symbol": ticker}))["price"]
    group.close()
    return ticker, price


def extras(**truth: Any) -> dict[str, Any]:
    return {"reward_spec": {"method": "rule", "ground_truth": {"task_id": "t", **truth}}, "max_turns": 4}


def made(record: dict[str, Any], config: object = None) -> MCPToolEnv:
    register()
    env = skyrl_gym.make("MCPToolEnv", env_config=config or {}, extras=record)
    assert isinstance(env, MCPToolEnv)
    return env


def test_an_episode_through_skyrl_gym_earns_the_whole_reward_at_its_last_step() -> None:
    ticker, price = quote_of_any()
    env = made(
        extras(
            tool_sequence=[{**PLAN, "params": {"symbol": ticker}}],
            final_answer={"type": "number", "value": "${step1.price}"},
        )
    )
    messages, metadata = env.init(PROMPT)
    assert messages == PROMPT
    assert QUOTE in {tool["function"]["name"] for tool in metadata["tools"]}
    first = env.step(call(QUOTE, symbol=ticker))
    assert (first["done"], first["reward"]) == (False, 0.0)
    assert json.loads(first["observations"][0]["content"])["price"] == price
    last = env.step(f"The answer is {price}.")
    assert last["done"]
    assert last["reward"] == pytest.approx(1.0)
    assert last["metadata"]["unscored"] is False
    assert last["metadata"]["stop_reason"] == "answered"
    metrics = env.get_metrics()
    assert (metrics["success"], metrics["turns"], metrics["tool_calls"], metrics["unscored"]) == (
        1.0,
        2,
        1,
        0.0,
    )
    assert MCPToolEnv.aggregate_metrics([metrics, metrics])["success"] == 1.0
    env.close()


def test_tools_are_searched_for_through_skyrl_gym_too() -> None:
    ticker, price = quote_of_any()
    truth = {
        "tool_sequence": [{**PLAN, "params": {"symbol": ticker}}],
        "final_answer": {"type": "number", "value": "${step1.price}"},
    }
    env = made({**extras(**truth), "max_turns": 2}, {"tools": {"discovery": "search", "pinned": ["slack"]}})
    _, metadata = env.init(PROMPT)
    offered = [tool["function"]["name"] for tool in metadata["tools"]]
    assert offered[0] == "search_tools" and HISTORY in offered and QUOTE not in offered
    found = env.step(call("search_tools", query="quote of a stock"))
    assert QUOTE in found["observations"][0]["content"]
    assert not env.step(call(QUOTE, symbol=ticker))["done"]
    last = env.step(f"The answer is {price}.")
    assert (last["done"], last["reward"]) == (True, pytest.approx(1.0))
    metrics = env.get_metrics()
    assert (metrics["searches"], metrics["tool_calls"], metrics["turns"]) == (1, 1, 3)
    env.close()


def test_a_prompt_past_the_limit_is_cut_for_skyrl_too() -> None:
    env = made(extras(abstain=True))
    (message,), _ = env.init([{"role": "user", "content": "ab" * 600_000}])
    assert len(message["content"]) <= 1_000_000
    assert "characters cut" in message["content"]
    env.close()


def test_many_environments_share_the_servers_from_many_threads() -> None:
    ticker, _ = quote_of_any()
    record = extras(tool_sequence=[{**PLAN, "params": {"symbol": ticker}}])
    envs = [made(record) for _ in range(24)]

    def play(env: MCPToolEnv) -> float:
        env.init(PROMPT)
        env.step(call(QUOTE, symbol=ticker))
        reward = env.step("Done.")["reward"]
        env.close()
        return reward

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(play, envs)) == [pytest.approx(1.0)] * 24


def test_the_generators_turn_limit_holds_and_the_record_may_be_json_text_with_nulls() -> None:
    truth = {
        "task_id": "t",
        "abstain": True,
        "max_turns": 8,
        "final_answer": None,
        "limits": {"max_tools": None},
    }
    record = {
        "reward_spec": {"ground_truth": json.dumps(truth)},
        "extra_info": {"tools": None},
        "max_turns": 1,
    }
    env = made(record)
    env.init(PROMPT)
    assert env.max_turns == 1
    out = env.step(call(QUOTE, symbol="AAPL"))
    assert (out["done"], out["metadata"]["stop_reason"]) == (True, "max_turns")
    env.close()


def test_a_failure_is_an_unscored_end_and_never_an_exception() -> None:
    setup = {"slack": [{"tool": SEND, "arguments": {"channel": "C000000", "message": "x"}}]}
    env = made(extras(abstain=True, setup=setup))
    env.init(PROMPT)
    out = env.step("hello")
    assert (out["done"], out["reward"], out["metadata"]["unscored"]) == (True, 0.0, True)
    assert SEND in out["metadata"]["errors"][0]
    assert env.get_metrics()["unscored"] == 1.0
    # A mean over episodes sees the one that dropped out.
    right = {"success": 1.0, "success_all": 1.0, "unscored": 0.0}
    means = MCPToolEnv.aggregate_metrics([right, env.get_metrics()])
    assert (means["success_all"], means["unscored"]) == (0.5, 0.5)
    env.close()
    unopened = made(extras(abstain=True))
    assert unopened.step("hello")["metadata"]["unscored"] is True
    unopened.close()
    over = made(extras(abstain=True))
    over.init(PROMPT)
    over.step("Done.")
    assert over.step("Once more.")["metadata"]["unscored"] is True
    over.close()


def test_bad_records_and_configs_are_the_users_to_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="limitd"):
        MCPToolEnv({"limitd": True}, extras(abstain=True))
    with pytest.raises(UserError, match="roles"):
        made(extras(abstain=True)).init([*PROMPT, {"role": "assistant", "content": "x"}])
    with pytest.raises(UserError, match="not JSON"):
        made({"reward_spec": {"ground_truth": "{"}}).init(PROMPT)
    with pytest.raises(UserError, match="ground_truth is null"):
        made({"reward_spec": {}}).init(PROMPT)
    with pytest.raises(UserError, match="cannot read"):
        made(extras(abstain=True), {"tools": {"servers": str(tmp_path / "none.json")}}).init(PROMPT)


def test_registering_twice_is_harmless() -> None:
    register()
    register()
    assert "MCPToolEnv" in registry


def test_the_tool_group_has_every_tool_by_name() -> None:
    group = MCPToolGroup(name="stocks")
    assert QUOTE in group.get_tool_names()
    assert group.get_tool_to_group_mapping()[QUOTE] == "stocks"
    assert "Unknown symbol" in group.execute_tool(QUOTE, {"symbol": "NOPE"})
    group.close()
