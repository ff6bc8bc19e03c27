"""SkyRL's generator over real MCP servers: what is played, what fails, what is left open."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from skyrl.train.utils.trainer_utils import validate_generator_output

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Completion, StopReason
from mcpagent.engines.skyrl.env import EnvConfig, parse_config, start_servers
from mcpagent.env.tool_format import open_renderer
from mcpagent.errors import RunError
from mcpagent.policy.contract import Sampling
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.run.rollout import count_nonces
from tests.skyrl.world import (
    RECORD,
    TOKENIZER,
    ScriptedEngine,
    generator,
    gold,
    play,
    row,
    scores,
    stdio_servers,
    stops_early,
)

BAD_SETUP = {
    "setup": {"slack": [{"tool": "send_slack_message", "arguments": {"channel": "C000000", "message": "x"}}]}
}


def test_sixteen_episodes_make_three_real_calls_each_and_leave_nothing_open(tmp_path: Path) -> None:
    servers = stdio_servers(tmp_path, sys.executable)
    tools = {"tools": {"servers": servers, "timeout_s": 120.0}}
    engine = ScriptedEngine()
    maker = generator(engine, tools, workers=4)
    output = play(maker, [row() for _ in range(16)])
    validate_generator_output(16, output)
    assert scores(output) == [1.0] * 16
    played = maker.played["train"]
    assert [len(t.tool_results) for t in played] == [3] * 16
    # Each server's stamp: the results came over MCP from the processes.
    assert count_nonces(played).stamped.total() == 48
    assert len({t.id for t in played}) == 16
    assert engine.open_now == set() and engine.finished == 16
    # And one each by the environment, which reads the channel to grade.
    counted = start_servers(parse_config(tools)).pool.metrics().servers
    assert sum(tool.calls for server in counted for tool in server.tools) == 48 + 16


def test_two_hundred_at_once_with_four_threads() -> None:
    engine = ScriptedEngine()
    maker = generator(engine, workers=4, max_open=200)
    output = play(maker, [row() for _ in range(200)])
    validate_generator_output(200, output)
    assert scores(output) == [1.0] * 200
    assert engine.most_open == 200
    assert engine.open_now == set() and engine.finished == 200
    bounded = ScriptedEngine()
    play(generator(bounded, workers=4, max_open=8), [row() for _ in range(24)])
    assert bounded.most_open <= 8


def test_injected_faults_end_as_masked_and_their_siblings_go_on() -> None:
    rows = [row() for _ in range(16)]
    rows[3] = row(truth=BAD_SETUP)  # the set-up fails
    rows[6] = row(info={"tools": ["fmp.no_such_tool"]})  # no server has it
    rows[9]["extras"]["reward_spec"]["ground_truth"] = "{"  # a broken row
    rows[12]["extras"]["reward_spec"]["ground_truth"] = "null"
    engine = ScriptedEngine(
        stop_reason=lambda session, turn: "abort" if session == "3_3" and turn == 2 else "stop"
    )
    maker = generator(engine)
    output = play(maker, rows)
    validate_generator_output(16, output)
    failed = {3, 6, 9, 12, 15}
    for place in range(16):
        is_failed = place in failed
        assert (output["stop_reasons"][place] == "failed") is is_failed, place
        assert (sum(output["loss_masks"][place]) == 0) is is_failed, place
        assert scores(output)[place] == (0.0 if is_failed else 1.0), place
        assert output["env_metrics"][place]["unscored"] == float(is_failed)
    assert engine.open_now == set() and engine.finished == 16


def test_a_server_that_dies_in_the_middle_masks_the_episodes_that_lost_a_call(tmp_path: Path) -> None:
    tools = {"tools": {"servers": stdio_servers(tmp_path, sys.executable), "retry": 0, "timeout_s": 60.0}}
    start_servers(parse_config(tools))
    killed: list[int] = []

    def kill(session: str, turn: int) -> None:
        if turn == 3 and session == "0_2" and not killed:
            for process in psutil.Process().children(recursive=True):
                if "slack" in process.cmdline():
                    killed.append(process.pid)
                    # It is stopped first: its supervisor does not see the end before the call is sent.
                    os.kill(process.pid, signal.SIGSTOP)
                    threading.Timer(1.0, os.kill, (process.pid, signal.SIGKILL)).start()

    maker = generator(ScriptedEngine(before=kill), tools, max_open=1, max_failed_share=1.0)
    output = play(maker, [row() for _ in range(4)])
    validate_generator_output(4, output)
    assert killed
    lost = [place for place in range(4) if output["stop_reasons"][place] == "failed"]
    assert lost == [2]  # its third call was under way; the server is up again for the next
    assert sum(output["loss_masks"][2]) == 0


def test_a_cut_turn_ends_the_episode_as_it_does_here_and_its_call_is_not_made() -> None:
    engine = ScriptedEngine(cut=lambda session: session == "0_1")
    maker = generator(engine)
    output = play(maker, [row() for _ in range(4)])
    assert output["stop_reasons"] == ["stop", "length", "stop", "stop"]
    cut = maker.played["train"][1]
    assert cut.stop_reason is StopReason.MAX_TOKENS
    assert [len(turn.tool_results) for turn in cut.turns] == [1, 0]
    assert cut.reward is not None and cut.reward < 0.45  # a failure, and scored
    assert sum(output["loss_masks"][1]) > 0


def test_a_full_context_ends_the_episode_and_it_is_scored() -> None:
    engine = ScriptedEngine()
    whole = play(generator(engine), [row()], group_size=1)
    longest = len(whole["prompt_token_ids"][0]) + len(whole["response_ids"][0])
    room = len(engine.asked[2]) + 1  # the third turn has one token
    assert room < longest
    maker = generator(ScriptedEngine(), context=room)
    output = play(maker, [row()], group_size=1)
    (trajectory,) = maker.played["train"]
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert trajectory.reward is not None and len(trajectory.turns) == 3
    assert output["stop_reasons"] == ["length"]
    assert len(output["prompt_token_ids"][0]) + len(output["response_ids"][0]) <= room


def test_past_the_share_that_may_fail_the_run_ends_with_the_first_error() -> None:
    rows = [row(truth=BAD_SETUP) for _ in range(3)] + [row()]
    with pytest.raises(RunError, match=r"3 of the 4 .*share that may fail \(0.5\).*Unknown channel"):
        play(generator(ScriptedEngine()), rows)
    play(generator(ScriptedEngine(), max_failed_share=0.75), rows)


def test_ids_are_unique_over_steps_phases_and_attempts() -> None:
    maker = generator(ScriptedEngine())
    for step, phase in ((1, "train"), (2, "train"), (2, "eval")):
        play(maker, [row() for _ in range(4)], step=step, phase=phase)
    ids = [t.id for t in maker.played["train"] + maker.played["eval"]]
    assert len(ids) == len(set(ids)) == 12


def test_the_tokens_are_those_of_the_same_episode_without_skyrl() -> None:
    """The native loop with the same completions renders the same contexts."""
    engine = ScriptedEngine()
    maker = generator(engine)
    output = play(maker, [row()], group_size=1)
    given = [turn.completion for turn in maker.played["train"][0].turns]

    class Replayed:
        async def complete(self, requests: Any) -> list[Completion]:
            return [given[(len(r.messages) - 1) // 2] for r in requests]

        async def release(self, episode_id: str) -> None: ...

    tools = start_servers(EnvConfig())
    (native,) = tools.io.run(
        collect(
            list(attempts([Task.model_validate(RECORD)], per_task=1, seed=0)),
            policy=Replayed(),
            tools=tools.pool,
            settings=AgentSettings(sampling=Sampling(max_new_tokens=256)),
            renderer=open_renderer(TOKENIZER, name="scripted"),
        )
    )
    context = [i for turn in native.turns for i in (*turn.added_token_ids, *turn.completion.token_ids)]
    assert output["prompt_token_ids"][0] + output["response_ids"][0] == context
    assert native.reward == pytest.approx(scores(output)[0])


def test_penalties_begin_once_enough_episodes_succeed() -> None:
    """Half of the attempts succeed."""
    engine = ScriptedEngine(script=lambda session: stops_early if session.endswith(("0", "1")) else gold)
    before = generator(engine, penalty_after_success=0.6)
    play(before, [row() for _ in range(4)])
    assert not before.penalty_active
    assert {
        term.weight for t in before.played["train"] for term in t.reward_terms if term.name == "penalty"
    } == {0}
    after = generator(engine, penalty_after_success=0.5)
    play(after, [row() for _ in range(4)])
    assert after.penalty_active
    assert 0 not in {
        term.weight for t in after.played["train"] for term in t.reward_terms if term.name == "penalty"
    }
