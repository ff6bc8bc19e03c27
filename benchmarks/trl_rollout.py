"""TRL's side of `benchmarks.rollout w3 --beside-trl`, for a Python that has TRL:
`python -m benchmarks.trl_rollout FOLDER`.

FOLDER holds `model/` (Hugging Face format, with a tokenizer) and `work.json`: the prompts (texts), attempts
at each, token ids of each turn, dtype, attempts in a pass of the update, and steps that count, after
`warm_up` that do not. Every forward pass, sample and tool call is real; only the sampled tokens are replaced
by those of the turn. Prints one line of JSON: the version, and the CPU seconds of each step and of its
rollout; the server has its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from benchmarks.trl_step import LORA, Clock, between


class _Forced(LogitsProcessor):
    """Leaves one token of the turn to sample."""

    turn: list[int]
    start: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if self.start is None:
            self.start = input_ids.shape[1]
        only = torch.full_like(scores, -float("inf"))
        only[:, self.turn[input_ids.shape[1] - self.start]] = 0.0
        return only


class _Trainer(GRPOTrainer):
    """Says the turns of the work, all attempts in step, and times its rollouts."""

    forced: _Forced
    turns: list[list[int]]
    said: int
    rollouts_cpu_s: list[float]

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **options: Any) -> Any:
        self.forced.turn, self.forced.start = self.turns[self.said], None
        self.said += 1
        out = super()._generate_single_turn(prompt_ids, *args, **options)
        assert all(ids == self.forced.turn for ids in out[0])
        return out

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.said, started = 0, time.process_time()
        out = super()._generate_and_score_completions(inputs)
        assert self.said == len(self.turns), "a call was not read"
        assert self._metrics["train"]["tools/failure_frequency"][-1] == 0
        self.rollouts_cpu_s.append(time.process_time() - started)
        return out


async def lookup(key: str) -> str:
    """Look up a value by key.

    Args:
        key: the key
    """
    result = await (await _session()).call_tool("lookup", {"key": key})
    return result.content[0].text  # type: ignore[union-attr]


@cache
def _session() -> asyncio.Future[ClientSession]:
    """The one session, opened in the loop of the first call and held until the process ends."""
    opened: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "benchmarks.lookup_server"], env=dict(os.environ)
        )
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            opened.set_result(session)
            await asyncio.Event().wait()

    opened.holder = asyncio.ensure_future(hold())  # type: ignore[attr-defined]
    return opened


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    work = json.loads((folder / "work.json").read_text())
    prompts, attempts, steps = work["prompts"], work["attempts"], work["warm_up"] + work["steps"]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.response_template = qwen3_template  # how calls are written by all templates of this family
    clock = Clock("cpu")
    trainer = _Trainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=getattr(torch, work["dtype"])),
        reward_funcs=lambda completions, **_: [(-1.0) ** i for i in range(len(completions))],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=work["dtype"] == "bfloat16",
            per_device_train_batch_size=work["micro_batch"],
            gradient_accumulation_steps=len(prompts) * attempts // work["micro_batch"],
            num_generations=attempts,
            max_completion_length=2048,
            gradient_checkpointing=False,
            learning_rate=1e-5,
            beta=0.0,
            max_steps=steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            shuffle_dataset=False,
        ),
        train_dataset=Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": text}] for text in prompts] * steps}
        ),
        processing_class=tokenizer,
        tools=[lookup],
        callbacks=[clock],
        peft_config=LORA,
    )
    trainer.forced, trainer.turns, trainer.rollouts_cpu_s = _Forced(), work["turns"], []
    base = trainer.model.get_base_model()
    base.generate = partial(base.generate, logits_processor=LogitsProcessorList([trainer.forced]))
    trainer.train()
    result = {
        "version": trl.__version__,
        "step_cpu_s": between(clock.cpu_ends)[work["warm_up"] :],
        "rollout_cpu_s": trainer.rollouts_cpu_s[work["warm_up"] :],
    }
    print(json.dumps(result), flush=True)
    os._exit(0)  # the session is held open


if __name__ == "__main__":
    main(Path(sys.argv[1]))
