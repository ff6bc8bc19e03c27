"""Run in TRL's environment: python sft_step.py MODEL ROWS OUT. One step of SFTTrainer on exported rows;
writes what it read of them, and whether the weights moved."""

import json
import sys
import tempfile
from pathlib import Path

import torch
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer


def main(model: str, rows: str, out: str) -> None:
    form = "parquet" if rows.endswith(".parquet") else "json"
    dataset = load_dataset(form, data_files=rows, split="train", cache_dir=tempfile.mkdtemp())
    args = SFTConfig(
        output_dir=out,
        max_steps=1,
        per_device_train_batch_size=2,
        max_length=None,
        learning_rate=1e-3,
        report_to="none",
        save_strategy="no",
        bf16=False,
        use_cpu=True,
    )
    read = list(dataset)
    trainer = SFTTrainer(model, args=args, train_dataset=dataset)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    loss = trainer.train().training_loss
    moved = any(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
    tokens = max(map(len, trainer.train_dataset["input_ids"]))
    document = {"read": read, "loss": loss, "moved": moved, "tokens": tokens}
    Path(out, "step.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main(*sys.argv[1:])
