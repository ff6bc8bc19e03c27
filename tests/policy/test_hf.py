"""`HFPolicy`: many callers, one compute thread, and what each of them learns when something fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from mcpagent.core.trajectory import Completion, FinishReason
from mcpagent.policy.hf.policy import HFPolicy
from tests.policy import oracle
from tests.policy.oracle import MAX_CONTEXT, naive_turn, request, tiny_model

PATIENCE_S = 20.0


@asynccontextmanager
async def serving(model: Any) -> AsyncIterator[HFPolicy]:
    with oracle.serving(model) as policy:
        async with asyncio.timeout(PATIENCE_S):
            yield policy


class Gate:
    """Holds the compute thread inside its next forward pass until it is opened."""

    def __init__(self, model: Any) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._hook = model.get_decoder().register_forward_pre_hook(self._wait)

    def _wait(self, *_: Any) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)

    async def wait_until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, PATIENCE_S)


def fail_from(model: Any, forward_pass: int) -> None:
    """The model's forward passes fail from that number on, the first is 1."""
    made = 0

    def count(*_: Any) -> None:
        nonlocal made
        made += 1
        if made >= forward_pass:
            raise ValueError("the device fell off")

    model.get_decoder().register_forward_pre_hook(count)


def test_completions_come_in_the_order_of_the_requests_with_their_tokens_and_version() -> None:
    model = tiny_model()
    asked = [request(f"e{i}", [1, 2, 3][: i + 1], seed=i, max_new_tokens=3 + i) for i in (2, 0, 1)]
    asked.insert(1, request("full", [1] * MAX_CONTEXT))

    async def run() -> list[Completion]:
        async with serving(model) as policy:
            return await policy.complete(asked)

    for one, completion in zip(asked, asyncio.run(run()), strict=True):
        tokens, logprobs, reason = naive_turn(model, one)
        assert (completion.token_ids, completion.finish_reason) == (tokens, reason)
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert completion.text == " ".join(map(str, tokens))
        assert [(s.version, s.start, s.end) for s in completion.policy_versions] == [(0, 0, len(tokens))]


def test_an_empty_list_of_requests_gives_an_empty_list() -> None:
    async def run() -> list[Completion]:
        async with serving(tiny_model()) as policy:
            return await policy.complete([])

    assert asyncio.run(run()) == []


def test_a_waiting_tool_does_not_hold_up_other_episodes() -> None:
    """One episode's tool answers only when the other has finished all of its turns."""
    model = tiny_model()
    finished: list[str] = []

    async def episode(
        policy: HFPolicy, name: str, *, tool: asyncio.Event | None, at_end: asyncio.Event
    ) -> None:
        context = [1, 2, 3]
        for turn in range(4):
            completion = (await policy.complete([request(name, context, seed=turn)]))[0]
            assert completion.token_ids == naive_turn(model, request(name, context, seed=turn))[0]
            if tool is not None:
                await tool.wait()
            context += [*completion.token_ids, 7, 8]
        finished.append(name)
        at_end.set()

    async def run() -> None:
        async with serving(model) as policy, asyncio.TaskGroup() as group:
            quick_is_done, never_mind = asyncio.Event(), asyncio.Event()
            group.create_task(episode(policy, "slow", tool=quick_is_done, at_end=never_mind))
            group.create_task(episode(policy, "quick", tool=None, at_end=quick_is_done))

    asyncio.run(run())
    assert finished == ["quick", "slow"]


def test_a_request_joins_a_batch_that_is_already_running() -> None:
    model = tiny_model(seed=1)

    async def run() -> list[int]:
        async with serving(model) as policy:
            gate = Gate(model)
            first = asyncio.create_task(policy.complete([request("a", [1, 2], seed=1, max_new_tokens=6)]))
            await gate.wait_until_reached()
            second = asyncio.create_task(policy.complete([request("b", [3, 4], seed=2, max_new_tokens=6)]))
            await asyncio.sleep(0)  # let it ask
            batches: list[int] = []
            model.get_decoder().embed_tokens.register_forward_hook(lambda m, i, o: batches.append(len(o)))
            gate.opened.set()
            await asyncio.gather(first, second)
            return batches

    assert 2 in asyncio.run(run())


def test_a_failing_model_raises_to_every_waiter_and_to_every_later_caller() -> None:
    model = tiny_model()
    fail_from(model, 3)

    async def run() -> list[Any]:
        async with serving(model) as policy:
            waiters = (policy.complete([request(f"e{i}", [1, 2, 3])]) for i in range(4))
            outcomes = await asyncio.gather(*waiters, return_exceptions=True)
            later = await asyncio.gather(policy.complete([request("x", [1])]), return_exceptions=True)
            await policy.release("e0")
            with pytest.raises(ValueError, match="the device fell off"):
                policy.on_weights_changed()
            return [*outcomes, *later]

    outcomes = asyncio.run(run())
    assert [str(outcome) for outcome in outcomes] == ["the device fell off"] * 5


def test_an_episode_has_one_turn_at_a_time() -> None:
    async def run() -> None:
        async with serving(tiny_model()) as policy:
            await policy.complete([request("a", [1, 2]), request("a", [1, 2])])

    with pytest.raises(RuntimeError, match="episode a already has a turn"):
        asyncio.run(run())


def test_a_closed_policy_refuses_instead_of_waiting_forever() -> None:
    async def run() -> None:
        async with serving(tiny_model()) as policy:
            policy.close()
            await policy.complete([request("e", [1])])

    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(run())


def test_turns_in_flight_learn_that_the_policy_was_closed() -> None:
    model = tiny_model()

    async def run() -> None:
        async with serving(model) as policy:
            gate = Gate(model)
            asked = asyncio.create_task(policy.complete([request("e", [1], max_new_tokens=50)]))
            await gate.wait_until_reached()
            closing = asyncio.create_task(asyncio.to_thread(policy.close))
            while policy._inbox.empty():
                await asyncio.sleep(0)
            gate.opened.set()
            await closing
            await asked

    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(run())


def test_new_weights_count_a_version_and_reach_the_next_completion() -> None:
    model = tiny_model()
    second = request("e", [1, 2, 3, 4, 5], seed=5)

    async def run() -> Completion:
        async with serving(model) as policy:
            await policy.complete([request("e", [1, 2, 3], seed=1, max_new_tokens=1)])
            with torch.no_grad():
                model.get_decoder().layers[0].self_attn.v_proj.weight.neg_()
            policy.on_weights_changed()
            return (await policy.complete([second]))[0]

    completion = asyncio.run(run())
    assert completion.token_ids == naive_turn(model, second)[0]
    assert completion.policy_versions[0].version == 1


def test_weights_are_written_on_the_engines_thread_and_not_within_a_turn() -> None:
    model = tiny_model()
    asked = request("e", [1, 2, 3], seed=1, max_new_tokens=4)
    alone = naive_turn(model, asked)
    assert len(alone[0]) > 1
    writers: list[str] = []

    def write() -> None:
        writers.append(threading.current_thread().name)

    async def run() -> Completion:
        async with serving(model) as policy:
            gate = Gate(model)
            turn = asyncio.create_task(policy.complete([asked]))
            await gate.wait_until_reached()
            change = asyncio.create_task(asyncio.to_thread(policy.on_weights_changed, write))
            while policy._inbox.empty():
                await asyncio.sleep(0)
            gate.opened.set()
            with pytest.raises(RuntimeError, match="while a turn is being sampled"):
                await change
            assert (writers, policy.version) == ([], 0)
            completion = (await turn)[0]
            policy.on_weights_changed(write)
            assert (writers, policy.version) == (["mcpagent-policy"], 1)  # nobody samples while it writes
            return completion

    completion = asyncio.run(run())
    assert completion.token_ids == alone[0]
    assert [span.version for span in completion.policy_versions] == [0]


def test_an_episode_that_is_released_in_mid_turn_leaves_the_others_unharmed() -> None:
    model = tiny_model()
    kept = request("kept", [4, 5], seed=2, max_new_tokens=20)

    async def run() -> list[Completion]:
        async with serving(model) as policy:
            gate = Gate(model)
            batch = asyncio.create_task(
                policy.complete([request("gone", [1, 2, 3], seed=1, max_new_tokens=20), kept])
            )
            await gate.wait_until_reached()
            await policy.release("gone")
            gate.opened.set()
            return await batch

    gone, other = asyncio.run(run())
    assert other.token_ids == naive_turn(model, kept)[0]
    assert (gone.finish_reason, len(gone.token_ids)) == (FinishReason.LENGTH, 1)


def test_a_caller_whose_loop_is_gone_does_not_end_the_policy() -> None:
    model = tiny_model()

    async def abandon(policy: HFPolicy, gate: Gate) -> None:
        asyncio.get_running_loop().create_task(policy.complete([request("old", [1], seed=1)]))
        await gate.wait_until_reached()

    with oracle.serving(model) as policy:
        gate = Gate(model)
        asyncio.run(abandon(policy, gate))
        gate.opened.set()
        (completion,) = asyncio.run(policy.complete([request("new", [2, 3], seed=2)]))
    assert completion.token_ids == naive_turn(model, request("new", [2, 3], seed=2))[0]
