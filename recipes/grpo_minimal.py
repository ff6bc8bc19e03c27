"""The loop on one page: tasks, episodes, advantages, loss, step, on real tool calls.

    python recipes/grpo_minimal.py [--steps 12] [--model CHECKPOINT --data DATA]

It makes the updates that `mcpagent train` makes (`tests/recipes/test_grpo_minimal.py` compares them), without
what a long run needs besides: checkpoints and resume, several processes, evaluation, health, trackers.
Without `--model` it makes tasks and warm-starts the embedded model first, once: a minute or two on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import GrpoConfig, TrainConfig
from mcpagent.core.trajectory import Trajectory
from mcpagent.demo.job import Stages, open_job
from mcpagent.demo.quickstart import make_tasks, warm_start
from mcpagent.errors import UserError
from mcpagent.rollout.collector import attempts, collect, group_trajectories
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import open_tasks
from mcpagent.storage.datasets import find_dataset
from mcpagent.tools.setup import open_tools
from mcpagent.train.grpo import success_rate, success_rate_of_all
from mcpagent.train.learner.build import build_learner
from mcpagent.train.learner.learner import Learner
from mcpagent.train.load import load
from mcpagent.train.objective.advantages import GradedBatch, assign_credit
from mcpagent.train.objective.grading import apply_penalty, grade_groups
from mcpagent.train.objective.loss import policy_loss, token_weights
from mcpagent.train.run_state import TaskOrder
from mcpagent.train.sampler import open_sampler
from mcpagent.train.settings import grade_settings, update_settings
from mcpagent.train.start import settle_start
from mcpagent.train.update import UpdateSettings, sampler_logprobs

FOLDER = Path("outputs/grpo_minimal")
LEFT_OUT = "kl_estimator, target_kl, reference, tis_cap, entropy_coef, epochs_per_batch, minibatches"


def train(config: TrainConfig, *, steps: int) -> Iterator[tuple[Learner, Sequence[Trajectory]]]:
    """Train for `steps` steps; gives the learner and the episodes of each step after its update."""
    for key in LEFT_OUT.split(", "):
        if getattr(config.grpo, key) != getattr(GrpoConfig(), key) or config.grpo.advantage == "gae":
            raise UserError(f"the page leaves {key} and gae out", where="grpo", remedy="mcpagent train")
    loaded, settings = load(config, start=settle_start(config, FOLDER)), update_settings(config)
    group_size, seed = config.rollout.group_size, config.seed
    with (
        open_tasks(config, find_dataset(config.data.train, split="train")) as tasks,
        open_tools(config.tools) as tools,
    ):
        total = config.total_steps(n_tasks=len(tasks))
        learner = build_learner(loaded, config, total_optimizer_steps=total)
        concurrency = min(config.rollout.num_envs, config.training.batch_size * group_size)
        order = TaskOrder(len(tasks), batch_size=config.training.batch_size, seed=seed)
        penalties, updates = False, 0
        with open_sampler(
            loaded, config, model=learner.model, slots=concurrency, weights=FOLDER / "weights"
        ) as sampler:
            for step in range(1, steps + 1):
                # 1. Tasks: every one once an epoch.
                batch = [tasks[i] for i in order.batch(step)]
                # 2. Episodes: `group_size` attempts at each task; real calls, and rewards from their results.
                episodes = tools.io.run(
                    collect(
                        list(attempts(batch, per_task=group_size, seed=seed, label=f"step {step}")),
                        policy=sampler.policy,
                        tools=tools.pool,
                        settings=agent_settings(config, max_context=loaded.max_context),
                        renderer=loaded.renderer,
                        concurrency=concurrency,
                    )
                )
                # 3. Advantages: each attempt against the others at its task. Penalties wait for success.
                penalties |= success_rate_of_all(episodes) >= config.reward.penalty_after_success
                in_force = apply_penalty(episodes, active=penalties, weight=config.reward.penalty_weight)
                groups = group_trajectories(in_force)
                graded = grade_groups(groups, settings=grade_settings(config), seed=seed + step)
                # 4. and 5. Loss and step, where a group sets its attempts apart; then the sampler's weights.
                if graded.samples:
                    updates += 1
                    update(learner, graded, settings, kl_coef=config.grpo.kl_coef, number=updates)
                    sampler.push()
                yield learner, episodes


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


def demonstration() -> list[str]:
    """Tasks and a warm-started model in `FOLDER`, as settings that name them."""
    stages = Stages(begin=lambda title, total: nullcontext(lambda *_, **__: None), note=print)
    job = open_job(FOLDER, seed=0, stages=stages)
    make_tasks(job)
    return [f"model.name={warm_start(job)}", f"data.train={FOLDER / 'data' / 'train.jsonl'}"]


def main() -> None:
    """Read the options, build the parts, train, and print a line for each step."""
    parser = argparse.ArgumentParser(description="GRPO on one page.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", help="a checkpoint; without it the embedded model, warm-started")
    parser.add_argument("--data", default="data/samples", help="a dataset; used with --model")
    parser.add_argument("--config", default=str(resource_path("configs/quickstart.yaml")))
    options = parser.parse_args()
    named = [f"model.name={options.model}", f"data.train={options.data}"]
    settings = named if options.model else demonstration()
    config = load_train_config([options.config], settings).config
    for step, (_, episodes) in enumerate(train(config, steps=options.steps), start=1):
        print(f"step {step:3}  success {success_rate(episodes):5.1%}", flush=True)


if __name__ == "__main__":
    main()
