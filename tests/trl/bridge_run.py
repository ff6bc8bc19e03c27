"""Run in TRL's environment: python bridge_run.py MODEL DATA. Three steps of GRPOTrainer through the bridge;
prints as JSON what `rollout_func` gave, and what the model itself says of these tokens."""

import json
import sys
from pathlib import Path

import torch
from trl import GRPOConfig, GRPOTrainer

from mcpagent.bridges.trl import open_dataset, reward_func, rollout_func

seen, rewards = [], []


def recorded(prompts, trainer):
    rows = rollout_func(prompts, trainer)
    model = trainer.model
    for prompt, ids, logprobs, mask in zip(
        rows["prompt_ids"], rows["completion_ids"], rows["logprobs"], rows["env_mask"], strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
        off = [abs(a - b) for a, b, m in zip(logprobs, expected.tolist(), mask, strict=True) if m]
        seen.append({"tokens": len(ids), "sampled": sum(mask), "off": max(off, default=0.0)})
    for row, reward in zip(seen[-len(prompts) :], rows["mcpagent_reward"], strict=True):
        row["reward"] = reward
    return rows


def kept(**columns):
    """The bridge's rewards, as the trainer takes them."""
    rewards.extend(reward_func(**columns))
    return rewards[-len(columns["prompts"]) :]


def short(completion_ids, **_):
    """A reward that differs also between the answers of an untrained model, so that there is something to
    learn."""
    return [-len(ids) / 100 for ids in completion_ids]


def main(model: str, data: str, out: str) -> None:
    args = GRPOConfig(
        output_dir=out,
        max_steps=3,
        num_generations=2,
        per_device_train_batch_size=8,
        max_completion_length=400,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        bf16=False,
        use_cpu=True,
    )
    with open_dataset(data, overrides=["rollout.max_new_tokens=24"]) as dataset:
        trainer = GRPOTrainer(model, [kept, short], args=args, train_dataset=dataset, rollout_func=recorded)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        moved = any(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
    Path(out, "seen.json").write_text(json.dumps({"episodes": seen, "rewards": rewards, "moved": moved}))


if __name__ == "__main__":
    main(*sys.argv[1:])
