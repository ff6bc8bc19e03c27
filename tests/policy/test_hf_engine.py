"""The engine against sampling without cache and batch, in every order in which episodes come and go."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from mcpagent.core.trajectory import FinishReason
from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.hf.policy import why_no_slots
from mcpagent.policy.hf.slot_engine import Finished, SlotEngine
from tests.models.families import VOCABULARY
from tests.policy.oracle import STOP, make_engine, naive_turn, request, tiny_model

ARCHITECTURES = {
    "qwen3": {"kind": "qwen3", "key_value_heads": 4},
    "qwen3, grouped queries": {"kind": "qwen3", "key_value_heads": 2},
    "qwen3, one key-value head, eager": {"kind": "qwen3", "key_value_heads": 1, "attention": "eager"},
    "llama, grouped queries": {"kind": "llama", "key_value_heads": 2},
}


def finish(engine: SlotEngine, asked: list[CompletionRequest]) -> dict[str, Finished]:
    ends = engine.admit(asked)
    while engine.has_work:
        ends += engine.step()
    return {end.request.episode_id: end for end in ends}


def assert_naive(model: Any, end: Finished, **options: int) -> None:
    tokens, logprobs, reason = naive_turn(model, end.request, **options)
    assert (end.token_ids, end.reason) == (tokens, reason)
    assert end.logprobs == pytest.approx(logprobs, abs=1e-5)


def some_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1, VOCABULARY) for _ in range(count)]


@pytest.mark.parametrize("shape", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_logprobs_over_turns_with_ragged_results_equal_a_full_forward_pass(shape: dict[str, Any]) -> None:
    model, rng = tiny_model(**shape), random.Random(0)
    engine = make_engine(model)
    contexts = {f"e{i}": some_tokens(rng, 3 + i) for i in range(5)}
    for turn in range(3):
        ends = finish(engine, [request(e, c, seed=turn * 10 + len(c)) for e, c in contexts.items()])
        assert set(ends) == set(contexts)
        for episode_id, end in ends.items():
            assert_naive(model, end)
            # A tool result of its own length for each episode, also of one token and of more than a turn.
            contexts[episode_id] += [*end.token_ids, *some_tokens(rng, rng.choice((1, 2, 7, 12)))]


# Equal ones, some that begin like others (with two servers, two tasks each), one that is the beginning of
# another, one without company.
SERVER, OTHER = (5, 6, 7, 8) * 3, (9, 8, 7, 6, 5) * 2
PROMPTS = (
    *((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3), (1, 2, 9, 9), (7,)),
    *((1, *SERVER, 3), (1, *SERVER, 4, 4), (1, *OTHER, 3), (1, *OTHER)),
)


MOST = 60  # tokens of a context


class Storm:
    """Episodes that open, ask, take steps, wait for tools, come back changed and end, in random order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = tiny_model(seed=seed)
        self.engine = make_engine(self.model, slots=8, max_context=MOST)
        self.waiting: dict[str, list[int]] = {}  # contexts of the episodes that are at a tool
        self.sampling: dict[str, CompletionRequest] = {}
        self.opened = self.turns = 0

    def open(self) -> None:
        for _ in range(min(self.rng.randint(1, 4), 8 - len(self.waiting) - len(self.sampling))):
            self.waiting[f"e{self.opened}"] = list(self.rng.choice(PROMPTS))
            self.opened += 1

    def ask(self) -> None:
        asked = [
            request(
                episode_id,
                self.waiting.pop(episode_id)[: MOST - 1],  # one that is full asks for no turn
                seed=self.rng.randrange(1000),
                max_new_tokens=self.rng.randint(1, 6),
                temperature=self.rng.choice((1.0, 0.7, 0.0)),
                top_p=self.rng.choice((1.0, 0.6)),
            )
            for episode_id in self.rng.sample(sorted(self.waiting), self.rng.randint(0, len(self.waiting)))
        ]
        self.sampling |= {a.episode_id: a for a in asked}
        self.check(self.engine.admit(asked))

    def step(self) -> None:
        if self.engine.has_work:
            self.check(self.engine.step())

    def end(self) -> None:
        """Of an episode between two turns, or in the middle of one (it was cancelled)."""
        open_episodes = sorted([*self.waiting, *self.sampling])
        for episode_id in self.rng.sample(open_episodes, min(1, len(open_episodes))):
            cut = self.engine.release(episode_id)
            assert [c.request.episode_id for c in cut] == [e for e in (episode_id,) if e in self.sampling]
            self.waiting.pop(episode_id, None)
            self.sampling.pop(episode_id, None)

    def change_weights(self) -> None:
        if not self.sampling:
            with torch.no_grad():
                self.model.get_decoder().layers[0].self_attn.v_proj.weight.neg_()
            self.engine.reset()

    def rewrite_history(self) -> None:
        """An episode comes back with another context than the one that it left with, or with less of it."""
        for context in self.rng.sample(list(self.waiting.values()), min(1, len(self.waiting))):
            context[self.rng.randint(1, len(context)) :] = some_tokens(self.rng, self.rng.randint(0, 3))

    def check(self, ends: list[Finished]) -> None:
        for end in ends:
            assert_naive(self.model, end, max_context=MOST)
            asked = self.sampling.pop(end.request.episode_id)
            assert end.request is asked
            self.turns += 1
            suffix = some_tokens(self.rng, self.rng.randint(1, 6))
            self.waiting[asked.episode_id] = [*asked.token_ids, *end.token_ids, *suffix]


@pytest.mark.parametrize("seed", range(8))
def test_every_turn_of_a_storm_of_episodes_is_sampled_as_if_alone(seed: int) -> None:
    storm = Storm(seed)
    actions = [storm.open, storm.ask, storm.step, storm.end, storm.rewrite_history, storm.change_weights]
    for act in storm.rng.choices(actions, weights=(4, 8, 20, 2, 2, 1), k=200):
        act()
        assert storm.engine.has_work == bool(storm.sampling)
    assert storm.turns > 40


def test_equal_prompts_are_computed_once_and_sample_as_if_alone() -> None:
    model, rng = tiny_model(), random.Random(1)
    system, questions = some_tokens(rng, 20), [some_tokens(rng, n) for n in (5, 8)]
    engine = make_engine(model)
    asked = [
        request(f"{q}#{attempt}", system + questions[q], seed=attempt)
        for q in range(2)
        for attempt in range(4)
    ]
    ends = finish(engine, asked)
    for end in ends.values():
        assert_naive(model, end)
    # The system prompt once; each question once but for its last token (4 + 7); that token for all 8 rows.
    assert engine.prefilled_tokens == 20 + 4 + 7 + 8


def test_what_two_servers_and_their_groups_have_in_common_is_computed_once() -> None:
    model, rng = tiny_model(), random.Random(1)
    system, servers = some_tokens(rng, 10), [[1, *some_tokens(rng, 15)], [2, *some_tokens(rng, 12)]]
    engine = make_engine(model)
    asked = [
        request(f"{server}/{question}#{attempt}", system + servers[server] + [3 + question] * 6, seed=attempt)
        for attempt in range(2)
        for question in range(2)
        for server in range(2)
    ]
    ends = finish(engine, asked)
    for end in ends.values():
        assert_naive(model, end)
    # The system prompt once, each server's tools once, and with them the server's first question (5 and the
    # last token of both attempts). Of the second one, copying 5 tokens to one attempt would save too little.
    assert engine.prefilled_tokens == 10 + (16 + 13) + 2 * ((5 + 2) + 2 * 6)


def test_a_new_episode_copies_what_one_under_way_has_computed() -> None:
    model, rng = tiny_model(), random.Random(1)
    system = some_tokens(rng, 20)
    engine = make_engine(model)
    finish(engine, [request("parked", [*system, 1, 2, 3])])
    engine.admit([request("sampling", [*system, 9, 9], max_new_tokens=12)])
    before = engine.prefilled_tokens
    ends = finish(engine, [request("like the first", [*system, 1, 2, 4]), request("alone", [8, 8])])
    for end in ends.values():
        assert_naive(model, end)
    assert engine.prefilled_tokens - before == 1 + 2


def test_a_long_prompt_does_not_pad_the_short_results_that_come_with_it() -> None:
    model, rng = tiny_model(), random.Random(2)
    engine = make_engine(model)
    contexts = {f"e{i}": some_tokens(rng, 4) for i in range(6)}
    for episode_id, end in finish(engine, [request(e, c) for e, c in contexts.items()]).items():
        contexts[episode_id] += [*end.token_ids, 5, 6]
    computed: list[int] = []
    hook = model.get_decoder().embed_tokens.register_forward_hook(
        lambda m, i, o: computed.append(i[0].numel())
    )
    ends = finish(
        engine, [*(request(e, c) for e, c in contexts.items()), request("new", some_tokens(rng, 60))]
    )
    hook.remove()
    for end in ends.values():
        assert_naive(model, end)
    # One block of 7 rows would be 7 * 60 = 420 tokens; 60 + 6 * 3 are new (a result and the pending token).
    prefill = computed[: computed.index(7)]
    assert sum(prefill) == 60 + 6 * 3


def test_the_same_requests_give_the_same_bits_whatever_was_sampled_before() -> None:
    model, rng = tiny_model(), random.Random(3)
    asked = [request(f"e{i}", some_tokens(rng, 10 + 5 * i), seed=i) for i in range(4)]
    fresh = finish(make_engine(model), asked)
    used = make_engine(model)
    finish(used, [request(f"old{i}", some_tokens(rng, 80 - i), seed=i) for i in range(9)])
    for i in range(9):
        used.release(f"old{i}")
    again = finish(used, asked)
    assert {e: (f.token_ids, f.logprobs) for e, f in again.items()} == {
        e: (f.token_ids, f.logprobs) for e, f in fresh.items()
    }


def test_the_stop_token_ends_a_turn_and_is_its_last_token() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.get_output_embeddings().weight[STOP] = 100.0 * model.get_decoder().norm.weight
        model.get_output_embeddings().weight[STOP + 1] = -model.get_output_embeddings().weight[STOP]
    ends = [finish(make_engine(model), [request("e", [n], temperature=0.0)])["e"] for n in range(2, 12)]
    stopped = [end for end in ends if end.reason is FinishReason.STOP]
    assert stopped
    assert all(end.token_ids[-1] == STOP and STOP not in end.token_ids[:-1] for end in stopped)


def test_weights_that_are_not_numbers_end_the_run_with_a_remedy() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.get_decoder().norm.weight[0] = torch.nan
    with pytest.raises(RunError, match="not finite") as caught:
        make_engine(model).admit([request("e", [1, 2])])
    assert "learning rate" in (caught.value.remedy or "")


def test_slots_are_counted() -> None:
    engine = make_engine(tiny_model(), slots=2)
    with pytest.raises(RuntimeError, match="2 slots"):
        engine.admit([request(str(i), [1, 2]) for i in range(3)])


def test_attention_that_the_cache_cannot_serve_is_named() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    assert "sliding_attention" in (why_no_slots(model) or "")
    assert "flex_attention" in (why_no_slots(tiny_model(attention="flex_attention")) or "")
