"""vLLM serves the model that a run left, whatever the run began with."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mcpagent.config.loader import load_train_config
from mcpagent.core.trajectory import Completion
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.run.train import run_training
from mcpagent.train.load import load
from mcpagent.train.sampler import open_sampler
from tests.run.test_starts import configured
from tests.run.world import dataset, samples
from tests.vllm.test_training import checkpoint as checkpoint
from tests.vllm.world import PARITY

PROMPT = (5, 9, 100, 17, 300, 8, 44)


def test_episodes_of_a_checkpoint_have_the_logprobs_of_its_weights(checkpoint: Path, tmp_path: Path) -> None:
    for split, part in (("train", samples(count=2)), ("heldout", samples(count=3)[2:])):
        dataset(tmp_path / "data" / f"{split}.jsonl", part)
    data = tmp_path / "data"
    run_training(
        configured(checkpoint, data, "algorithm=sft", "training.eval_samples=0"), run_dir=tmp_path / "warm"
    )
    # The canary of the run itself compares vLLM with the trainer after its step.
    backend = ("rollout.backend=vllm", "rollout.max_context_tokens=1024")
    run = run_training(
        configured(tmp_path / "warm", data, "lora.r=4", "training.eval_samples=0", *backend),
        run_dir=tmp_path / "run",
    ).run_dir
    config = load_train_config([], [f"model.name={run}", *backend], for_training=False).config
    loaded = load(config)
    with open_sampler(loaded, config, model=loaded.model, slots=1) as sampler:
        request = CompletionRequest(
            episode_id="a", sampling=Sampling(max_new_tokens=8), seed=1, token_ids=PROMPT
        )
        (completion,) = asyncio.run(sampler.policy.complete([request]))
    assert _furthest(load(config).model, completion) <= PARITY


def _furthest(model: object, completion: Completion) -> float:
    from mcpagent.models.probe import score

    (logprobs,) = score(model, [[*PROMPT, *completion.token_ids]])
    theirs = logprobs[len(PROMPT) - 1 :]
    return max(abs(a - b) for a, b in zip(theirs, completion.logprobs, strict=True))
