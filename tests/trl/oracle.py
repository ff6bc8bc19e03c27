"""What TRL makes of given episodes: a script for a Python that has TRL, `oracle.py FOLDER`.

FOLDER holds `model/` and `reference/` (Hugging Face format), and `cases.json`: the episodes, and options of
GRPOConfig by case. Each case goes through `GRPOTrainer._generate_and_score_completions` and `_compute_loss`
as they are; only what would sample (`_generate`), judge (`_calculate_rewards`) and run the fused head, which
computes in float32, is put in their place. Writes `results.safetensors`: for each case the loss, the
advantages, the logprobs [B, C] and their gradient, and the gradient of every parameter; once, the logprobs
of TRL's own fused head.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    document = json.loads((folder / "cases.json").read_text())
    results: dict[str, torch.Tensor] = {}
    for name, case in document["cases"].items():
        episodes = case.get("episodes", document["episodes"])
        results |= {f"{name}/{key}": value for key, value in _run(folder, episodes, case).items()}
    results["fused"] = _fused_logprobs(folder, document["episodes"])
    save_file(
        {name: value.detach().contiguous() for name, value in results.items()}, folder / "results.safetensors"
    )


def _run(folder: Path, episodes: list[dict[str, Any]], case: dict[str, Any]) -> dict[str, torch.Tensor]:
    trainer = _trainer(folder, episodes, case["config"], dtype=torch.float64)
    scored: list[torch.Tensor] = []
    trainer._get_per_token_logps_and_entropies = _plain(trainer.temperature, scored)
    trainer.use_vllm = case["corrects_sampler"]
    inputs = [{"prompt": "x"} for _ in episodes]
    batch = trainer._generate_and_score_completions(inputs)
    if not case["corrects_sampler"]:
        batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, batch)
    scored[-1].retain_grad()
    loss.backward()
    gradients = {f"gradient/{n}": p.grad for n, p in trainer.model.named_parameters()}
    return {
        "loss": loss[None],
        "advantages": batch["advantages"],
        "logprobs": scored[-1],
        "gradient": scored[-1].grad,
        **gradients,
    }


def _trainer(
    folder: Path, episodes: list[dict[str, Any]], config: dict[str, Any], *, dtype: torch.dtype
) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    trainer: Any = GRPOTrainer(
        model=model,
        reward_funcs=lambda **_: [],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            gradient_checkpointing=False,
            per_device_train_batch_size=len(episodes),
            gradient_accumulation_steps=1,
            num_generations=episodes[0]["group_size"],
            **config,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 8}),
        processing_class=tokenizer,
    )
    if trainer.ref_model is not None:
        trainer.ref_model = AutoModelForCausalLM.from_pretrained(folder / "reference", dtype=dtype)
    trainer._generate = lambda prompts: (
        [e["prompt_ids"] for e in episodes],
        [e["completion_ids"] for e in episodes],
        [e["sampled"] for e in episodes],
        ["" for _ in episodes],
        [e["logprobs"] for e in episodes],
        {},
        None,
        None,
    )
    unscored = float("nan")
    rewards = [[unscored if e["reward"] is None else e["reward"]] for e in episodes]
    trainer._calculate_rewards = lambda *_: torch.tensor(rewards)
    trainer.model.train()
    return trainer


def _plain(temperature: float, scored: list[torch.Tensor]) -> Any:
    """Logprobs and entropies by TRL's functions on whole logits; `scored` gets each [B, C] of logprobs."""

    def score(
        model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *_: Any, **__: Any
    ) -> Any:
        # The model turns positions into angles in float32, where a shift by the padding is not exact.
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": positions}
        logits = model(**inputs).logits[:, :-1]
        logits = logits[:, -logits_to_keep:] / temperature
        logprobs = selective_log_softmax(logits, input_ids[:, -logits_to_keep:])
        scored.append(logprobs)
        return logprobs, entropy_from_logits(logits), None

    return score


def _fused_logprobs(folder: Path, episodes: list[dict[str, Any]]) -> torch.Tensor:
    """Of every completion position [B, C], as a GRPO run of TRL computes them."""
    torch.set_default_dtype(torch.float32)
    trainer = _trainer(folder, episodes, {}, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    real = trainer._get_per_token_logps_and_entropies

    def spy(*args: Any, **options: Any) -> Any:
        out = real(*args, **options)
        seen.append(out[0])
        return out

    trainer._get_per_token_logps_and_entropies = spy
    batch = trainer._generate_and_score_completions([{"prompt": "x"} for _ in episodes])
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, batch)
    return seen[-1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
