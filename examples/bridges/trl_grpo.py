"""Train with TRL's GRPOTrainer on tasks of mcpagent.

python trl_grpo.py MODEL DATA [STEPS]

MODEL is a hub id or folder, DATA a folder that `mcpagent gen-data` wrote. In an environment with
`pip install "mcpagent[trl]"`.
"""

# pyright: reportMissingImports=false

import sys

import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from mcpagent.bridges.trl import open_dataset, reward_func, rollout_func


def main(model: str, data: str, steps: str = "3") -> None:
    """Train adapters for so many steps."""
    args = GRPOConfig(
        output_dir="outputs/trl",
        max_steps=int(steps),
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=512,
        learning_rate=1e-4,
        logging_steps=1,
        report_to="none",
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
    )
    with open_dataset(data, overrides=["rollout.max_new_tokens=64"]) as dataset:
        trainer = GRPOTrainer(
            model,
            reward_func,
            args=args,
            train_dataset=dataset,
            rollout_func=rollout_func,
            peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
