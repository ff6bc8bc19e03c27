"""Count the missed updates that the weight-sync proof sees, and the healthy ones that it stops.

Six-layer Qwen3 models with random weights in bfloat16 whose logits spread as those of trained models do
(standard deviation 4, output head of its own). They take real AdamW steps with float32 masters on random
tokens with random advantages, at the learning rates of training. Each *healthy* try is one update that
reaches the sampler; each *missed* try is one that does not. Counted are the proofs that stop, by which of
their three comparisons would have: what was read back (`arrived`), the distance (`apart`), the direction
(`moved`).
`noise` adds to each token's logprob a fixed error of that standard deviation, as between two kernels of a
GPU, and a hundredth of it that is another one each time.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mcpagent.core.trajectory import Completion
from mcpagent.errors import RunError
from mcpagent.models.adapters import LoraShape, attach_lora
from mcpagent.policy.canary import CANARY_ROWS, Arrival, Canary, ReadBack
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.policy.hf.policy import HFPolicy
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.optim import Schedule
from mcpagent.train.weight_sync import RolloutEngine, hf_sampler, score_completions

LAYERS, VOCABULARY, CONTEXT, LOGIT_SPREAD = 6, 4096, 256, 4.0
LORA = LoraShape(r=16, alpha=32.0, dropout=0.0, target_modules="all-linear")
COUNTED = ("tries", "any", "arrived", "apart", "moved")


def measure(
    mode: str, rate: float, *, missed: int, healthy: int, noise: float, hidden: int, seed: int
) -> dict[str, Any]:
    """Healthy updates, with the missed ones spread evenly between them; each missed one is made up for before
    the next update, so that it is one update that is missing."""
    torch.set_num_threads(1)
    world = World(mode, rate, hidden=hidden, seed=seed)
    counts = {"missed": Counter[str](), "healthy": Counter[str]()}
    shown: dict[str, list[float]] = {"difference": [], "direction": [], "moved": [], "stale": []}
    started = time.process_time()
    with serving(world) as (sampler, push):
        policy: Policy = Noisy(sampler.policy, noise, seed=seed) if noise else sampler.policy
        watch = world.canary()
        asyncio.run(watch.prove(policy, version=0, read_back=sampler.read_back))
        version = 0
        for index in range(max(missed, healthy)):
            if index < missed:
                version += 1
                world.step()
                stops = seen(watch, policy, sampler.read_back, version=version)
                count(counts["missed"], stops)
                push()
                asyncio.run(watch.prove(policy, version=version, read_back=sampler.read_back))
            if index < healthy:
                version += 1
                world.step()
                push()
                count(counts["healthy"], seen(watch, policy, sampler.read_back, version=version, keep=shown))
    return {
        "mode": mode,
        "learning_rate": rate,
        "noise": noise,
        **{kind: {name: counted[name] for name in COUNTED} for kind, counted in counts.items()},
        "shown": ", ".join(f"{name} {sum(v) / len(v):.3g}" for name, v in shown.items() if v),
        "cpu_s": round(time.process_time() - started, 1),
    }


def count(counts: Counter[str], stops: set[str]) -> None:
    counts["tries"] += 1
    counts["any"] += bool(stops)
    counts.update(stops)


def seen(
    watch: Canary,
    policy: Policy,
    read_back: ReadBack | None,
    *,
    version: int,
    keep: dict[str, list[float]] | None = None,
) -> set[str]:
    """Which comparisons stop: that of what was read back, and that of the tokens, each without the other."""
    assert read_back is not None
    stops = {"arrived"} if read_back().differing else set()
    try:
        proof = asyncio.run(watch.prove(policy, version=version))
    except RunError as error:
        return stops | {"moved" if "moved by" in error.message else "apart"}
    for name, values in (keep or {}).items():
        if (value := getattr(proof, name, None)) is not None:
            values.append(value)
    return stops


class World:
    """A model in bfloat16 that takes AdamW steps with float32 masters."""

    def __init__(self, mode: str, rate: float, *, hidden: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.mode, self._seed, self._random = mode, seed, random.Random(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=LAYERS,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 64,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
        )
        self.base: Any = Qwen3ForCausalLM(config)
        with torch.no_grad():
            head = self.base.get_output_embeddings().weight
            self.base.model.norm.weight.mul_(LOGIT_SPREAD / (float(head.std()) * hidden**0.5))
        self.base = self.base.to(torch.bfloat16).eval()
        self.folder = tempfile.TemporaryDirectory(prefix="mcpagent-sync-")
        self.base.save_pretrained(Path(self.folder.name) / "model")
        self.model = self.base
        if mode == "lora":
            self.model = attach_lora(self.base, LORA, seed=seed).eval()
            for _, parameter in self._trained():
                parameter.data = parameter.data.to(torch.bfloat16)
        self.learner = Learner(self.model, None, schedule=Schedule([], lambda _: 1.0), gradient_clip=None)
        self._masters = [p.detach().float().clone() for _, p in self._trained()]
        self._optimizer = torch.optim.AdamW(self._masters, lr=rate, weight_decay=0.0)

    def step(self) -> None:
        """One update on tokens and advantages of chance, clipped as training clips."""
        tokens = torch.tensor([[self._random.randrange(1, VOCABULARY) for _ in range(24)] for _ in range(4)])
        advantages = torch.tensor([self._random.gauss(0.0, 1.0) for _ in range(4)])
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[:, :, 0]
        (-(logprobs.mean(1) * advantages).mean()).backward()
        for master, (_, parameter) in zip(self._masters, self._trained(), strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self._masters, 1.0)
        self._optimizer.step()
        with torch.no_grad():
            for master, (_, parameter) in zip(self._masters, self._trained(), strict=True):
                parameter.copy_(master)

    def canary(self) -> Canary:
        """Over two prompts of chance."""
        rng = random.Random(self._seed + 1)
        prompts = [[rng.randrange(1, VOCABULARY) for _ in range(72)] for _ in range(2)]

        def score(rows: Sequence[Sequence[int]], own: Sequence[Sequence[int]], heat: float) -> list[float]:
            return score_completions(self.learner, rows, own, heat)

        return Canary(prompts, score=score, dtype="bfloat16", max_context=CONTEXT, seed=self._seed)

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)


@contextmanager
def serving(world: World) -> Iterator[tuple[RolloutEngine, Callable[[], None]]]:
    """Yield an engine with weights of its own, and the function that copies the trained ones to it."""
    opened = _copied(world)
    try:
        yield opened, opened.push
    finally:
        opened.close()
        world.folder.cleanup()


def _copied(world: World) -> RolloutEngine:
    """The `hf` engine over a copy, as an engine elsewhere would have it."""
    copy = Qwen3ForCausalLM.from_pretrained(Path(world.folder.name) / "model", dtype=torch.bfloat16)
    twin: Any = copy if world.mode == "full" else attach_lora(copy, LORA, seed=1).to(torch.bfloat16)
    settings: dict[str, Any] = {"stop_ids": frozenset({0}), "max_context": CONTEXT, "slots": CANARY_ROWS}
    served = hf_sampler(twin.eval(), decode=lambda _: "", **settings)
    policy = served.policy
    assert isinstance(policy, HFPolicy)

    def write() -> None:
        twin.load_state_dict(world.model.state_dict())

    def read_back() -> Any:
        ours, theirs = world.model.state_dict(), twin.state_dict()
        differing = tuple(name for name in ours if not torch.equal(ours[name], theirs[name]))
        return Arrival(tensors=len(ours), differing=differing)

    def push() -> None:
        policy.on_weights_changed(write)

    push()
    return RolloutEngine(policy=policy, push=push, close=served.close, read_back=read_back)


class Noisy:
    """A policy whose logprobs are off by an error of their own, nearly the same each time."""

    def __init__(self, policy: Policy, size: float, *, seed: int) -> None:
        self._policy, self._size, self._seed = policy, size, seed
        self._fresh = random.Random(seed)

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """The policy's completions, with logprobs that a kernel elsewhere would give."""
        completions = await self._policy.complete(requests)
        return [self._changed(r, c) for r, c in zip(requests, completions, strict=True)]

    async def release(self, episode_id: str) -> None:
        """As the policy's."""
        await self._policy.release(episode_id)

    def _changed(self, request: CompletionRequest, completion: Completion) -> Completion:
        logprobs: list[float] = []
        for place, (token, value) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            fixed = random.Random(f"{self._seed}/{request.episode_id}/{place}/{token}").gauss(0.0, self._size)
            logprobs.append(min(0.0, value + fixed + self._fresh.gauss(0.0, self._size / 100)))
        return completion.model_copy(update={"logprobs": tuple(logprobs)})
