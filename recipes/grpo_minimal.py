"""The loop on one page: tasks, episodes, advantages, loss, step, on real tool calls.

    mcpagent quickstart
    python recipes/grpo_minimal.py [--steps 12] [--model CHECKPOINT --data DATA]

It makes the updates that `mcpagent train` makes (`tests/recipes/test_grpo_minimal.py` compares them), without
what a long run needs besides: checkpoints and resume, several processes, evaluation, health, trackers.
It begins with the warm start of the quickstart, or with `--model`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch

from mcpagent import TrainConfig, Trajectory, UserError, attempts, collect, load_train_config
from mcpagent.rollout.collector import group_trajectories
from mcpagent.run.parts import open_parts
from mcpagent.train.learner.learner import Learner
from mcpagent.train.objective.advantages import GradedBatch, assign_credit
from mcpagent.train.objective.grading import apply_penalty, grade_groups
from mcpagent.train.objective.loss import policy_loss, token_weights
from mcpagent.train.update import UpdateSettings, sampler_logprobs

FOLDER, QUICKSTART = Path("outputs/grpo_minimal"), Path("outputs/quickstart")
CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
LEFT_OUT = "kl_estimator, target_kl, reference, tis_cap, entropy_coef, epochs_per_batch, minibatches"


def train(config: TrainConfig, *, steps: int) -> Iterator[tuple[Learner, Sequence[Trajectory]]]:
    """Train for `steps` steps; gives the learner and the episodes of each step after its update."""
    for key in LEFT_OUT.split(", "):
        if getattr(config.grpo, key) != getattr(TrainConfig().grpo, key) or config.grpo.advantage == "gae":
            raise UserError(f"the page leaves {key} and gae out", where="grpo", remedy="mcpagent train")
    seed, penalties, updates = config.seed, False, 0
    with open_parts(config, FOLDER) as parts:
        for step in range(1, steps + 1):
            # 1. Tasks: every one once an epoch.
            batch = [parts.tasks[i] for i in parts.order.batch(step)]
            # 2. Episodes: `group_size` attempts at each task; real calls, and rewards from their results.
            size = config.rollout.group_size
            episodes = parts.tools.io.run(
                collect(
                    list(attempts(batch, per_task=size, seed=seed, label=f"step {step}")),
                    policy=parts.sampler.policy,
                    tools=parts.tools.pool,
                    settings=parts.agent,
                    renderer=parts.renderer,
                    concurrency=parts.concurrency,
                )
            )
            # 3. Advantages: each attempt against the others at its task. Penalties wait for success.
            penalties |= success(episodes) >= config.reward.penalty_after_success
            in_force = apply_penalty(episodes, active=penalties, weight=config.reward.penalty_weight)
            groups = group_trajectories(in_force)
            graded = grade_groups(groups, settings=parts.grading, seed=seed + step)
            # 4. and 5. Loss and step, if a group sets its attempts apart; then the sampler's weights.
            if graded.samples:
                updates += 1
                update(parts.learner, graded, parts.update, kl_coef=config.grpo.kl_coef, number=updates)
                parts.sampler.push()
            yield parts.learner, episodes


def update(
    learner: Learner, graded: GradedBatch, settings: UpdateSettings, *, kl_coef: float, number: int
) -> None:
    """One optimiser step, the `number`-th of the run, on all samples of the batch."""
    samples, advantages = graded.samples, assign_credit(graded).advantages  # by sample and turn
    weights = token_weights(
        [sample.loss_tokens for sample in samples],
        loss=settings.objective.loss,
        max_tokens=settings.max_response_tokens,
    )
    learner.model.train()
    for batch in learner.batches(samples, max_tokens=settings.micro_batch_tokens):
        rows = [samples[i] for i in batch.rows]
        lengths_B = torch.tensor([sample.loss_tokens for sample in rows])
        turns_K = torch.tensor([n for sample in rows for n in sample.turn_tokens_K])
        advantages_K = torch.tensor([a for i in batch.rows for a in advantages[i]])
        weights_N = torch.tensor([weights[i] for i in batch.rows]).repeat_interleave(lengths_B)
        logprobs_N, _ = learner.score(batch, temperature=settings.temperature)
        loss_N = policy_loss(
            logprobs_N,
            objective=settings.objective,
            kl_coef=kl_coef,
            old_logprobs_N=sampler_logprobs(rows, learner),
            advantages_N=advantages_K.repeat_interleave(turns_K),
            lengths_B=lengths_B,
            reference_logprobs_N=learner.reference_logprobs(batch, temperature=settings.temperature),
        ).loss_N
        learner.backward((loss_N * weights_N).sum())
    learner.step(number)
    learner.model.eval()


def success(episodes: Sequence[Trajectory]) -> float:
    """Return the share of successes; an unscored episode counts as failed."""
    return fmean(episode.is_success is True for episode in episodes)


def main() -> None:
    """Read the options, train, and print a line for each step."""
    parser = argparse.ArgumentParser(description="GRPO on one page.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", default=QUICKSTART / "warm_start", help="a run or a checkpoint")
    parser.add_argument("--data", default=QUICKSTART / "data", help="a dataset")
    parser.add_argument("--config", default=CONFIG, help="a configuration")
    options = parser.parse_args()
    if QUICKSTART in (path := Path(options.model)).parents and not path.exists():
        parser.error(f"there is no {path} yet: run mcpagent quickstart, or name a model")
    settings = [f"model.name={options.model}", f"data.train={options.data}"]
    config = load_train_config([options.config], settings).config
    for step, (_, episodes) in enumerate(train(config, steps=options.steps), start=1):
        print(f"step {step:3}  success {success(episodes):5.1%}", flush=True)


if __name__ == "__main__":
    main()
