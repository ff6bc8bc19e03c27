"""Sampling with vLLM on CPU: every number against transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mcpagent.core.trajectory import Completion, FinishReason
from mcpagent.errors import UserError
from mcpagent.policy.vllm.engine import VllmPolicy
from tests.vllm.world import (
    MAX_CONTEXT,
    PARITY,
    STOP,
    ask,
    decode,
    prompts,
    requests,
    serving,
    tiny_model,
    worst,
)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def policy(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmPolicy]:
    with serving(model, tmp_path_factory.mktemp("model")) as policy:
        yield policy


def test_an_engine_leaves_the_random_numbers_and_threads_of_the_trainer_alone(policy: VllmPolicy) -> None:
    # The engine of `policy` was made in this process: what it replaced for good would show here.
    assert torch.set_num_threads.__module__ != "vllm.v1.worker.cpu_worker"
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ask(policy, requests(prompts(2)))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"temperature": 0.0},
        {"top_p": 0.5},
        {"temperature": 0.8, "top_p": 0.7},
    ],
    ids=str,
)
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(
    model: Any, policy: VllmPolicy, sampling: dict[str, Any]
) -> None:
    asked = requests(prompts(12), **sampling)
    got = ask(policy, asked)
    assert sum(len(c.token_ids) for c in got) > 100
    assert worst(model, asked, got) < PARITY


def test_rows_with_different_settings_in_one_batch_keep_their_own(model: Any, policy: VllmPolicy) -> None:
    settings = [{"temperature": 0.0}, {"temperature": 0.5}, {"top_p": 0.4}, {"temperature": 1.3}]
    asked = [requests(prompts(4), **one)[i] for i, one in enumerate(settings)]
    assert worst(model, asked, ask(policy, asked)) < PARITY


def test_greedy_tokens_are_the_likeliest(model: Any, policy: VllmPolicy) -> None:
    (asked,) = requests(prompts(1), temperature=0.0, max_new_tokens=6)
    (got,) = ask(policy, [asked])
    context = list(asked.token_ids)
    for token in got.token_ids:
        with torch.no_grad():
            assert int(model(input_ids=torch.tensor([context])).logits[0, -1].argmax()) == token
        context.append(token)


def test_a_seed_gives_its_tokens_in_any_batch_and_another_seed_others(policy: VllmPolicy) -> None:
    asked = requests([prompts(1)[0]] * 6)
    together, again = ask(policy, asked), ask(policy, asked)
    assert together == again
    assert len({c.token_ids for c in together}) == len(asked)
    (alone,) = ask(policy, [asked[3]])
    assert alone.token_ids == together[3].token_ids
    # 63 bits, as `derive_seed` makes them.
    large = replace(asked[0], seed=(1 << 63) - 1)
    assert ask(policy, [large])[0].token_ids == ask(policy, [large])[0].token_ids


def test_a_turn_ends_with_the_stop_token_which_is_part_of_it(model: Any, policy: VllmPolicy) -> None:
    asked = requests(prompts(16), temperature=2.0, max_new_tokens=150)
    ended = [c for c in ask(policy, asked) if c.finish_reason is FinishReason.STOP]
    assert ended
    for completion in ended:
        assert completion.token_ids.index(STOP) == len(completion.token_ids) - 1
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.text == decode(completion.token_ids)


def test_the_context_limit_cuts_a_turn_and_a_full_context_overflows(policy: VllmPolicy) -> None:
    almost, full = prompts(1, length=MAX_CONTEXT - 3)[0], prompts(1, length=MAX_CONTEXT)[0]
    cut, overflow = ask(policy, requests([almost, full], temperature=0.1))
    assert (len(cut.token_ids), cut.finish_reason) == (3, FinishReason.LENGTH)
    assert (overflow.token_ids, overflow.finish_reason) == ((), FinishReason.OVERFLOW)


def test_a_later_turn_computes_only_what_is_new(policy: VllmPolicy) -> None:
    (first,) = requests(prompts(1, seed=99))
    (said,) = ask(policy, [first])
    context = (*first.token_ids, *said.token_ids, *prompts(1, length=20, seed=98)[0])
    before = policy.engine.prefilled_tokens
    ask(policy, requests([context]))
    assert policy.engine.prefilled_tokens - before < len(context) - len(first.token_ids) + 32


async def test_a_request_joins_a_batch_that_is_running_and_leaves_before_it(policy: VllmPolicy) -> None:
    order: list[str] = []

    async def one(name: str, tokens: int) -> Completion:
        (asked,) = requests([prompts(1)[0]], name=name, max_new_tokens=tokens, temperature=0.3)
        (got,) = await policy.complete([asked])
        order.append(name)
        return got

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(one("long", 150))
        await asyncio.sleep(0)
        group.create_task(one("short", 2))
    assert order == ["short", "long"]


async def test_releasing_an_episode_ends_its_turn_and_no_other(policy: VllmPolicy) -> None:
    gone, stays = requests(prompts(2), max_new_tokens=120, temperature=0.3)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        first = group.create_task(policy.complete([gone]))
        second = group.create_task(policy.complete([stays]))
        await asyncio.sleep(0)
        await policy.release(gone.episode_id)
    gone, stays = first.result()[0], second.result()[0]
    assert gone.token_ids == ()
    assert len(stays.token_ids) > 0


def test_a_second_engine_in_this_process_is_refused(policy: VllmPolicy, model: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="process group"), serving(model, tmp_path):
        pass


def test_more_prompt_tokens_than_fit_into_one_step_are_sampled_right(model: Any, policy: VllmPolicy) -> None:
    """vLLM would cut a prompt in two there; a row with a seed and half a prompt ends its engine on CPU."""
    asked = requests(prompts(90, length=140, seed=7), max_new_tokens=3)
    assert sum(len(request.token_ids) for request in asked) > 16_000
    assert worst(model, asked, ask(policy, asked)) < PARITY


def test_asking_an_engine_that_sleeps_is_an_error_and_no_wait_without_end(policy: VllmPolicy) -> None:
    """Last of this file: an engine that gave its memory to the trainer fails for good when it is asked."""
    # vLLM refuses `enable_sleep_mode` on a CPU, but its engine can be put to sleep as a GPU's is.
    policy.call(lambda: policy.engine._llm.sleep(level=1))
    with pytest.raises(RuntimeError, match="sleeps"):
        asyncio.run(asyncio.wait_for(policy.complete(requests(prompts(1))), timeout=20))
