"""How fast a pretrained model is on this machine: two passes, a prompt and a few tokens, and what follows.

A minute on two cores, where one step of each kind takes many. Demonstrations, which are played on the real
servers and cost next to nothing, say how many tokens a step computes; what several samples share is counted
once, as the trainer and the sampler compute it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mcpagent.config.schema import TrainConfig
from mcpagent.demo.pretrained import Width
from mcpagent.env.offer import discovery
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.run.train import prepared
from mcpagent.storage.datasets import spread
from mcpagent.tools.setup import open_tools
from mcpagent.train.batch.samples import PackedBatch, SharedPrefix, TrainSample
from mcpagent.train.learner.build import build_learner
from mcpagent.train.learner.learner import Learner
from mcpagent.train.load import Loaded, load
from mcpagent.train.sampler import open_sampler, why_corrected
from mcpagent.train.settings import grpo_settings
from mcpagent.train.sft import demonstrate, demonstration_samples, writable

_DEMONSTRATED = 48  # tasks
_FIRST_PASS = 64  # tokens: what a pass takes besides its tokens
_DECODED = 4  # tokens of each row


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds on this machine: to load the model, of an optimiser's step, of a token in a pass forward and
    backward and in one that only computes, of a token that one row samples and of each row beside it, and of
    the tool calls of an episode."""

    load_s: float
    step_s: float
    train_s: float
    forward_s: float
    decode_s: float
    row_s: float
    tools_s: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work that tasks are for a model: `samples` are their demonstrations, `tokens` counts those that the
    trainer computes for some of them. Before its backward pass an update computes `forward_passes` more;
    `at_once` episodes are played at a time."""

    samples: Sequence[TrainSample]
    tokens: Callable[[Sequence[TrainSample]], int]
    forward_passes: int
    at_once: int

    @property
    def longest_turn(self) -> int:
        """Return the tokens of the longest turn."""
        return max(max(sample.turn_tokens_K, default=0) for sample in self.samples)

    def supervised_s(self, rates: Rates, *, batch: int) -> float:
        """Return the seconds of a supervised step."""
        return rates.step_s + rates.train_s * self.tokens(spread(self.samples, batch))

    def grpo_s(self, rates: Rates, *, batch: int, group: int) -> float:
        """Return the seconds of a step of GRPO: its episodes, and an update on all of them."""
        each = spread(self.samples, batch)
        token_s = rates.train_s + self.forward_passes * rates.forward_s
        update_s = rates.step_s + token_s * self.tokens([*each] * group)
        return update_s + self._episodes_s(rates, each, attempts=group)

    def evaluation_s(self, rates: Rates, *, tasks: int) -> float:
        """Return the seconds of an episode of an evaluation, which plays each task greedily and sampled."""
        each = spread(self.samples, tasks)
        return self._episodes_s(rates, each, attempts=2) / (2 * len(each))

    def _episodes_s(self, rates: Rates, samples: Sequence[TrainSample], *, attempts: int) -> float:
        """Seconds of so many attempts at each task. A prompt is computed once, what the tools answer by each
        attempt, and a turn of those who play at once takes as many steps as the longest has tokens."""
        count = attempts * len(samples)
        made = sum(s.loss_tokens for s in samples)
        shown = sum(len(s) - s.first_loss for s in samples) - made
        computed = self.tokens([_prompt(sample) for sample in samples]) + attempts * shown
        turns = fmean(len(s.turn_tokens_K) for s in samples)
        longest = fmean(max(s.turn_tokens_K, default=0) for s in samples)
        steps = ceil(count / self.at_once) * turns * longest
        sampling_s = rates.decode_s * steps + rates.row_s * attempts * made
        return rates.forward_s * computed + sampling_s + rates.tools_s * count


def measure(
    config: TrainConfig, width: Width, *, on_part: Callable[[str, int, int], None]
) -> tuple[Rates, Workload]:
    """Load the model of `config`, a run of GRPO, and time it on its tasks. Nothing of it is kept. Raises
    UserError as the run would."""
    with ExitStack() as stack:
        ready = stack.enter_context(prepared(config))
        config = ready.checked.settled(config)
        tools = stack.enter_context(open_tools(config.tools))
        on_part("demonstrating", 0, 1)
        tasks, began = spread(list(ready.tasks), _DEMONSTRATED), time.monotonic()
        discovered = discovery(config.tools)
        played = tools.io.run(demonstrate(tasks, tools=tools.pool, seed=config.seed, discovery=discovered))
        demonstrated = time.monotonic()
        on_part("loading", 0, 1)
        loaded = load(config)
        config = loaded.settled(config)
        learner = build_learner(loaded, config, total_optimizer_steps=3)
        by_id, catalog = {task.id: task for task in tasks}, tools.pool.tools
        readable = writable(played, by_id, catalog=catalog, tool_format=loaded.renderer.tool_format)
        samples = list(
            demonstration_samples(
                list(readable), by_id, catalog=catalog, renderer=loaded.renderer, discovery=discovered
            )
        )
        engine = stack.enter_context(
            open_sampler(
                loaded,
                config,
                model=learner.model,
                slots=width.at_once,
                weights=Path(stack.enter_context(TemporaryDirectory(prefix="mcpagent-pace-"))),
                learner=learner,
            )
        )
        load_s = time.monotonic() - demonstrated
        on_part("one pass", 0, 1)
        most = config.training.pass_tokens
        step_s, train_s = _passes(learner, spread(samples, width.samples), most=most, tokens=width.tokens)
        learner.model.eval()
        engine.push()
        on_part("one token", 0, 1)
        prompt = samples[0].token_ids_T[: samples[0].first_loss][-width.tokens :]
        sampler = _Sampler(engine.policy, tools.io.run, prompt)
        prompt_s = sampler.seconds(rows=1, tokens=1)
        one_s = sampler.seconds(rows=1, tokens=_DECODED)
        sampler.seconds(rows=width.at_once, tokens=1)
        many_s = sampler.seconds(rows=width.at_once, tokens=_DECODED)
        row_s = max(0.0, many_s - one_s) / max(1, width.at_once - 1)
        rates = Rates(
            load_s=load_s,
            step_s=step_s,
            train_s=train_s,
            forward_s=prompt_s / len(prompt),
            decode_s=max(0.0, one_s - row_s),
            row_s=row_s,
            tools_s=(demonstrated - began) / len(played),
        )
        return rates, Workload(
            samples=samples,
            tokens=lambda some: _tokens(learner, some, most),
            forward_passes=_forward_passes(config, loaded, learner),
            at_once=config.rollout.num_envs,
        )


def _forward_passes(config: TrainConfig, loaded: Loaded, learner: Learner) -> int:
    """Return how often an update scores its samples besides: by the trainer before it, by the reference."""
    is_corrected = why_corrected(loaded, config, model=learner.model) is not None
    update = grpo_settings(config, total_steps=1, is_corrected=is_corrected).update
    is_rescored = not update.is_single_step or update.tis_cap is not None or update.kl_in_reward
    return int(is_rescored) + int(update.use_reference and config.grpo.kl_coef > 0)


def _prompt(sample: TrainSample) -> TrainSample:
    """Return what is computed before the first token is sampled."""
    end = sample.first_loss
    return TrainSample(token_ids_T=sample.token_ids_T[: end + 1], loss_mask_T=(*[False] * end, True))


def _last(sample: TrainSample, tokens: int) -> TrainSample:
    return TrainSample(token_ids_T=sample.token_ids_T[-tokens:], loss_mask_T=sample.loss_mask_T[-tokens:])


@torch.no_grad()
def _tokens(learner: Learner, samples: Sequence[TrainSample], most: int) -> int:
    total, prefixes = 0, list[SharedPrefix]()
    for batch in learner.batches(samples, max_tokens=most):
        total += batch.input_ids.numel()
        if isinstance(batch, PackedBatch) and batch.prefix is not None and batch.prefix not in prefixes:
            prefixes.append(batch.prefix)
    return total + sum(len(prefix.input_ids) for prefix in prefixes)


def _passes(
    learner: Learner, samples: Sequence[TrainSample], *, most: int, tokens: int
) -> tuple[float, float]:
    """Return the seconds of an optimiser's step and of a token in a pass over the samples' last `tokens`."""
    few = [_last(samples[0], _FIRST_PASS)]
    many = [_last(sample, tokens) for sample in samples]
    _, few_s, many_s = (
        _pass_s(learner, each, most=most, step=step) for step, each in enumerate((few, few, many))
    )
    train_s = max(0.0, many_s - few_s) / max(1, _tokens(learner, many, most) - _tokens(learner, few, most))
    return max(0.0, few_s - train_s * _FIRST_PASS), train_s


def _pass_s(learner: Learner, samples: Sequence[TrainSample], *, most: int, step: int) -> float:
    learner.model.train()
    began = time.monotonic()
    for batch in learner.batches(samples, max_tokens=most):
        logprobs, _ = learner.score(batch)
        learner.backward(-logprobs.mean())
    learner.step(step)  # which waits for the device
    return time.monotonic() - began


@dataclass(frozen=True)
class _Sampler:
    policy: Policy
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    prompt: Sequence[int]

    def seconds(self, *, rows: int, tokens: int) -> float:
        """Return the seconds of each of so many tokens of so many rows; the first of a row computes what is
        not known yet of its prompt."""
        requests = [
            CompletionRequest(
                episode_id=f"pace-{row}",
                token_ids=self.prompt,
                seed=row,
                sampling=Sampling(max_new_tokens=tokens),
            )
            for row in range(rows)
        ]
        began = time.monotonic()
        completions = self.run(self.policy.complete(requests))
        return (time.monotonic() - began) / max(1, *(len(c.token_ids) for c in completions), 1)
