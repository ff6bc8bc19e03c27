"""What `benchmarks.gpu` measures on one device: each check reports rows, some of which are judged."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks import latency, models
from benchmarks.bench import Bench
from benchmarks.beside_trl import check_trl
from benchmarks.memory import GIB, LAYOUTS, kept_by
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import LoraConfig, ToolsConfig, TrainConfig
from mcpagent.demo.explored import ExploredServers
from mcpagent.demo.job import Stages, open_job
from mcpagent.demo.pretrained import Pretrained
from mcpagent.demo.quickstart import run_stages
from mcpagent.models.adapters import attach_lora
from mcpagent.models.attention import PrefixTree, _attend_masked, _has_flash, attend_tree
from mcpagent.models.load import use_checkpointing
from mcpagent.models.probe import TOLERANCE
from mcpagent.models.tokens import Renderer
from mcpagent.policy.canary import Canary
from mcpagent.train.batch.samples import PackedBatch, TrainSample, pack
from mcpagent.train.forecast import memory, shape_of
from mcpagent.train.learner.build import build_learner
from mcpagent.train.learner.learner import Learner
from mcpagent.train.load import load
from mcpagent.train.sampler import open_sampler
from mcpagent.train.update import UpdateSettings, update_policy
from mcpagent.train.weight_sync import score_completions

REAL_MODEL = Path(os.environ.get("MCPAGENT_REAL_MODEL", "~/.cache/mcpagent/real-model")).expanduser()
_RUN_MINUTES = 8  # of ten: the tasks are made before, and what is said is not exact
_TINY_RUN = [
    *("training.max_steps=2", "training.batch_size=2", "rollout.group_size=2"),
    *("rollout.max_new_tokens=4", "rollout.max_context_tokens=4096"),
]


def check_machine(bench: Bench) -> None:
    """What the figures are of."""
    bench.report("python, torch", f"{platform.python_version()}, {torch.__version__}")
    for package in ("vllm", "bitsandbytes"):
        is_there = importlib.util.find_spec(package) is not None
        bench.report(package, "installed" if is_there else "not installed")
    if bench.has_cuda:
        bench.report("device", torch.cuda.get_device_name())
        bench.report("memory, GiB", round(torch.cuda.mem_get_info()[1] / GIB, 1))
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        bench.report("computes bfloat16", native, "True", native)


def check_attention(bench: Bench) -> None:
    """The flash path of packed trees beside the one with masks, both in the dtype of the GPU: outputs and
    gradients."""
    shape = bench.shape("4b")
    layout = (40, 3, 24) if bench.is_tiny else LAYOUTS["16 x 320 on 3,000"]
    samples = _samples(layout, vocabulary=shape.vocab_size)
    tree = pack(samples, range(len(samples))).tree
    tokens, generator = tree.sets[-1].end, torch.Generator(bench.device).manual_seed(0)
    key_value_heads = shape.num_key_value_heads or shape.num_attention_heads
    heads = (shape.num_attention_heads, key_value_heads, key_value_heads)
    head_dim = shape.head_dim or shape.hidden_size // heads[0]
    options: dict[str, Any] = {"device": bench.device, "dtype": bench.dtype, "generator": generator}
    query, key, value = inputs = [
        torch.randn(1, tokens, count, head_dim, **options).transpose(1, 2).requires_grad_() for count in heads
    ]
    given = torch.randn(1, tokens, heads[0], head_dim, **options)
    is_flash = _has_flash(query, key, value)
    bench.report("takes the flash path", is_flash, "True", is_flash)
    limit = 0.02 if bench.dtype == torch.bfloat16 else 1e-5
    paths: dict[str, Callable[[], torch.Tensor]] = {
        "flash": lambda: attend_tree(query, key, value, tree, scaling=head_dim**-0.5),
        "masked": lambda: _attend_masked(query, key, value, tree, scaling=head_dim**-0.5, dropout=0.0),
    }
    results: dict[str, list[torch.Tensor]] = {}
    for name, path in paths.items():
        out = path()
        results[name] = [out.detach(), *torch.autograd.grad(out, inputs, given)]
    names = ("outputs", "gradients of queries", "gradients of keys", "gradients of values")
    for name, flash, masked in zip(names, results["flash"], results["masked"], strict=True):
        apart = float((flash.float() - masked.float()).norm() / masked.float().norm())
        bench.report(f"{name}: distance by size", f"{apart:.2g}", f"< {limit:g}", apart < limit)
    for name, path in paths.items():
        with bench.peak_gib() as peak:
            ms = 1e3 * bench.seconds(lambda path=path: torch.autograd.grad(path(), inputs, given), repeats=5)
        bench.report(f"{name}: ms a layer, both passes", round(ms, 2))
        if bench.has_cuda:
            bench.report(f"{name}: peak GiB", round(peak[0], 2))


def check_update(bench: Bench) -> None:
    """An update of LoRA at 4B and 8k tokens: its rate beside a bare bfloat16 product of matrices, what it
    keeps for the backward pass, and its peak beside the forecast."""
    rate = _matmul_rate(bench)
    bench.report("a bare product of matrices, TFLOP/s", round(rate / 1e12, 1 if bench.has_cuda else 4))
    base = bench.model("4b")
    linear = sum(m.weight.numel() for m in base.get_decoder().modules() if isinstance(m, torch.nn.Linear))
    adapted = attach_lora(base, models.LORA, seed=0)
    learner = models.learner_of(adapted)
    reason = learner.why_not_packed
    bench.report("samples are packed", reason or "yes", "yes", reason is None)
    layouts = {"3 x 24 on 40": (40, 3, 24)} if bench.is_tiny else LAYOUTS
    names = list(layouts)[:2]  # one long row, and 16 continuations of a prompt
    for is_checkpointing in (False, True):
        if is_checkpointing:
            use_checkpointing(adapted)
        for name in names:
            case = f"{name}, checkpointing" if is_checkpointing else name
            _measure_update(bench, learner, layouts[name], linear, rate, is_checkpointing, case)


def _measure_update(
    bench: Bench,
    learner: Learner,
    layout: tuple[int, int, int],
    linear: int,
    rate: float,
    is_checkpointing: bool,
    case: str,
) -> None:
    shape = bench.shape("4b")
    samples = _samples(layout, vocabulary=shape.vocab_size)
    (batch,) = learner.batches(samples, max_tokens=1 << 14)
    assert isinstance(batch, PackedBatch)
    tokens = int(batch.input_ids.numel())
    learner.model.train()
    weights = list(learner.model.parameters())
    kept = kept_by(lambda: learner.score(batch)[0], weights)

    def update() -> None:
        learner.backward(-learner.score(batch)[0].mean())

    with bench.peak_gib() as peak:
        seconds = bench.seconds(update, repeats=3)
        learner.step(1)
    settings = [
        f"training.micro_batch_tokens={tokens}",
        f"model.gradient_checkpointing={str(is_checkpointing).lower()}",
    ]
    config = load_train_config([], settings).config
    lora = LoraConfig(r=models.LORA.r)
    parts = memory(
        config.model_copy(update={"lora": lora}),
        shape_of(shape, lora),
        itemsize=bench.dtype.itemsize,
        samples_here=False,
    )
    # Frozen weights take two products of matrices and no gradient of their own; what is computed again, one
    # more. The head is computed again for each chunk of logits; attention computes its scores again.
    passes = 3 if is_checkpointing else 2
    pairs = sum(_pairs(batch.tree))
    attention = pairs * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim
    loss_tokens = sum(s.loss_tokens for s in samples)
    flop = 2 * passes * linear * tokens + (12 + 4 * is_checkpointing) * attention
    flop += 6 * shape.hidden_size * shape.vocab_size * loss_tokens
    share = flop / seconds / rate
    if bench.has_cuda:
        bench.report(f"{case}: tokens/s", round(tokens / seconds))
        bench.report(f"{case}: share of the bare product", f"{share:.1%}", ">= 45%", share >= 0.45)
    else:
        bench.report(f"{case}: TFLOP of an update", f"{flop / 1e12:.2g}")
    said, gib = parts["activations"] / GIB, kept / GIB
    if is_checkpointing:  # the layer that is computed again is not there yet
        limit = 12.0
        bench.report(f"{case}: kept GiB", f"{gib:.3g}", f"<= {limit:g}", gib <= limit)
    else:
        is_near = abs(gib - said) <= 0.15 * gib
        wanted = f"{said:.3g} forecast, within 15%"
        bench.report(f"{case}: kept GiB", f"{gib:.3g}", wanted, None if bench.is_tiny else is_near)
    if bench.has_cuda:
        total = sum(parts.values()) / GIB
        is_near = abs(peak[0] - total) <= 0.15 * peak[0]
        bench.report(f"{case}: peak GiB", f"{peak[0]:.3g}", f"{total:.3g} forecast, within 15%", is_near)


def _matmul_rate(bench: Bench) -> float:
    """FLOP/s of a square product in bfloat16 (float32 on a CPU)."""
    size = 256 if bench.is_tiny else 8192
    left, right = (torch.randn(size, size, device=bench.device, dtype=bench.dtype) for _ in range(2))
    return 2 * size**3 / bench.seconds(lambda: left @ right, repeats=20)


def _pairs(tree: PrefixTree) -> Iterator[int]:
    """Queries with the keys that they see, set by set."""
    for siblings in tree.sets:
        before = sum(end - start for start, end in siblings.path)
        yield sum(length * before + length * (length + 1) // 2 for length in siblings.lengths)


def _samples(layout: tuple[int, int, int], *, vocabulary: int) -> list[TrainSample]:
    """Continuations of one prompt, of which every token carries loss."""
    prompt, count, each = layout
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, min(vocabulary, 2000), (n,), generator=generator).tolist())

    shared, mask = draw(prompt), (False,) * prompt + (True,) * each
    return [
        TrainSample(token_ids_T=shared + draw(each), loss_mask_T=mask, sampler_logprobs_T=(0.0,) * len(mask))
        for _ in range(count)
    ]


def _config(bench: Bench, folder: Path, *settings: str) -> TrainConfig:
    """A run's, on the model in `folder`."""
    return load_train_config(
        [],
        [
            f"model.name={json.dumps(str(folder))}",
            f"device={bench.device.type}",
            "rollout.max_context_tokens=1024",
            "training.warmup_steps=0",
            "optimization.learning_rate=1e-4",
            *settings,
        ],
    ).config


def check_learner(bench: Bench) -> None:
    """What the trainer builds from its defaults, adapters and all weights, in bfloat16: float32 masters that
    take a whole step, and checkpointing."""
    folder = bench.model_folder("0.6b")
    for mode in ("lora", "full"):
        settings = (f"finetune.mode={mode}", "rollout.backend=hf", "model.dtype=bfloat16", "grpo.kl_coef=0")
        config = _config(bench, folder, *settings, "optimization.learning_rate=1e-6")
        loaded = load(config)
        learner = build_learner(loaded, config, total_optimizer_steps=100)
        layers = [m for m in learner.model.modules() if isinstance(m, GradientCheckpointingLayer)]
        is_on = any(layer.gradient_checkpointing for layer in layers)
        bench.report(f"{mode}: checkpointing by default", is_on, str(bench.has_cuda), is_on == bench.has_cuda)
        masters = [p.detach() for _, p in learner._masters.named]
        are_float32 = all(p.dtype == torch.float32 for p in masters)
        bench.report(f"{mode}: optimisers move float32", are_float32, "True", are_float32)
        before = [p.clone() for p in masters]
        stats = update_policy(
            learner,
            models.graded(_samples((40, 4, 24), vocabulary=loaded.model.config.vocab_size)),
            settings=UpdateSettings(use_reference=False, micro_batch_tokens=4096),
            first_optimizer_step=1,
            seed=0,
        )
        # The first step of AdamW is the learning rate, whatever the gradient. Norms are left out: the last
        # one is so large here that float32 itself rounds it.
        moved = max(
            float((now - then).abs().max())
            for now, then in zip(masters, before, strict=True)
            if now.ndim == 2
        )
        bench.report(
            f"{mode}: a step at 1e-6 moves a master by", f"{moved:.2g}", "1e-06", 0.9e-6 < moved < 1.1e-6
        )
        norm = stats.summary()["grad_norm"]
        bench.report(f"{mode}: norm of the gradient", f"{norm:.3g}", "> 0", norm > 0)


def check_sampler_hf(bench: Bench) -> None:
    """How far the sampler of transformers and the trainer are apart."""
    _check_sampler(bench, "hf")


def check_sampler_vllm(bench: Bench) -> None:
    """How far vLLM and the trainer are apart."""
    if importlib.util.find_spec("vllm") is None:
        bench.report("vLLM", "left out: it is not installed")
        return
    _check_sampler(bench, "vllm")


def _check_sampler(bench: Bench, backend: str) -> None:
    config = _config(bench, bench.model_folder("0.6b"), f"rollout.backend={backend}")
    loaded = load(config)
    learner = build_learner(loaded, config, total_optimizer_steps=100)
    generator = torch.Generator().manual_seed(1)
    canary = Canary(
        [torch.randint(3, 2000, (72,), generator=generator).tolist() for _ in range(2)],
        score=partial(score_completions, learner),
        dtype=str(bench.dtype).removeprefix("torch."),
        max_context=loaded.max_context,
    )
    samples = _samples((40, 4, 24), vocabulary=loaded.model.config.vocab_size)
    limit = TOLERANCE[str(bench.dtype).removeprefix("torch.")]
    with open_sampler(
        loaded, config, model=learner.model, slots=32, weights=bench.folder / "weights", learner=learner
    ) as sampler:
        for version in range(2):
            proof = asyncio.run(canary.prove(sampler.policy, version=version, read_back=sampler.read_back))
            case = "after an update" if version else "at first"
            bench.report(
                f"{case}: mean difference to the trainer, nats",
                f"{proof.difference:.2g} of {proof.tokens} tokens",
                f"<= {limit:g}",
                proof.difference <= limit,
            )
            bench.report(f"{case}: tensors read back", proof.arrived, "> 0", proof.arrived > 0)
            if not version:
                sampler.rest()
                update_policy(
                    learner,
                    models.graded(samples),
                    settings=UpdateSettings(use_reference=False, micro_batch_tokens=4096),
                    first_optimizer_step=1,
                    seed=0,
                )
                sampler.push()


def check_rollouts(bench: Bench) -> None:
    """Episodes with tools of 0.5 to 5 s beside the same with tools of 0 s. What waits cost by themselves,
    with each step of the sampler as dear for few rows as for all, is allowed; an episode that waits must not
    stop the others."""
    model, renderer = bench.model("0.6b").eval(), Renderer(bench.tokenizer)
    sizes: dict[str, Any] = {"episodes": 8, "filler": 4, "in_flight": 4} if bench.is_tiny else {"filler": 128}
    between = (0.1, 0.3) if bench.is_tiny else (0.5, 5.0)
    fast, slow = (
        asyncio.run(latency.measure(model, renderer, slow=is_slow, between=between, **sizes))
        for is_slow in (False, True)
    )
    rates = [each.tokens / each.wall_s for each in (fast, slow)]
    bench.report("tools of 0 s: tokens/s", round(rates[0]))
    bench.report(f"tools of {between[0]} to {between[1]} s: tokens/s", round(rates[1]))
    waits = latency.CALLS * sum(between) / 2
    share, allowed = rates[1] / rates[0], fast.episode_s / (fast.episode_s + waits)
    judged = None if bench.is_tiny else share >= 0.9 * allowed
    bench.report("share", f"{share:.2f}", f">= 0.9 of the {allowed:.2f} that waits allow", judged)


def check_quickstart(bench: Bench) -> None:
    """The quickstart with both of its runs on the device."""
    job = open_job(bench.folder / "quickstart", seed=0, stages=Stages(begin=_no_progress))
    warm, grpo = (c.model_copy(update={"device": bench.device.type}) for c in (job.warm, job.grpo))
    if bench.is_tiny:
        warm = _smaller(warm, training={"max_steps": 3, "batch_size": 4}, sft={"curriculum_steps": 1})
        rollout = {"group_size": 2, "num_envs": 4, "max_new_tokens": 4, "max_steps_per_episode": 2}
        grpo = _smaller(grpo, training={"max_steps": 1, "batch_size": 2}, rollout=rollout)
        job = replace(job, counts={"train": 24, "validation": 4, "heldout": 4})
    job = replace(job, warm=warm)
    named = grpo.model.model_copy(update={"name": str(job.warm_checkpoint)})
    document = run_stages(replace(job, grpo=grpo.model_copy(update={"model": named})))
    before, after = document["warm_start"]["metrics"], document["trained"]["metrics"]
    for name, metric, gain in (
        ("greedy", "task_success", 0.30),
        ("sampled", "task_success_sampled", 0.25),
    ):
        values = [100 * each[metric]["value"] for each in (before, after)]
        has_learned = values[1] - values[0] >= 100 * gain
        bench.report(
            f"success, {name}: warm start, trained",
            f"{values[0]:.1f}, {values[1]:.1f}",
            f"+{100 * gain:.0f}",
            None if bench.is_tiny else has_learned,
        )
    bench.report("CPU seconds by stage", json.dumps(document["cpu_s"]))


def check_run(bench: Bench) -> None:
    """What a user of a GPU does: a pretrained model on a server of one's own, from untrained to evaluated
    after GRPO, within ten minutes of wall time; on vLLM, if it is installed."""
    model = bench.model_folder("0.6b") if bench.is_tiny else REAL_MODEL
    if not model.is_dir():
        bench.report("model", "left out: MCPAGENT_REAL_MODEL names the folder of none")
        return
    servers = bench.folder / "mcp.json"
    museum = Path(__file__).parents[1] / "tests" / "demo" / "servers" / "museum.py"
    entry = {"command": sys.executable, "args": [str(museum)]}
    servers.write_text(json.dumps({"mcpServers": {"museum": entry}}))
    settings = [
        f"device={bench.device.type}",
        *(_TINY_RUN if bench.is_tiny else ["rollout.tool_format=json"]),
    ]
    job = open_job(
        bench.folder / "run",
        seed=0,
        stages=Stages(begin=_no_progress, note=lambda note: bench.report("said", note)),
        explored=ExploredServers(tools=ToolsConfig(servers=str(servers))),
        pretrained=Pretrained(model=str(model), minutes=_RUN_MINUTES, settings=settings),
    )
    if bench.is_tiny:
        job = replace(job, counts={"train": 40, "validation": 2, "heldout": 20})
    started = time.perf_counter()
    document = run_stages(job)
    wall_s = time.perf_counter() - started
    for side in ("untrained", "untrained_2_shots", "warm_start", "trained"):
        for name, metric in (("greedy", "task_success"), ("sampled", "task_success_sampled")):
            if side in document:
                bench.report(f"{side}, {name}", _with_interval(document[side]["metrics"][metric]))
    for side, gains in document["gains"].items():
        for name, gain in gains.items():
            bench.report(f"gain of {side}, {name}", json.dumps(gain))
    is_better = "trained" in document and document["gains"]["trained"]["sampled"]["ci_low"] > 0
    bench.report("better than untrained, sampled", is_better, "True", None if bench.is_tiny else is_better)
    bench.report("said, s", document["said_s"])
    bench.report("taken, s", round(wall_s), "<= 600", None if bench.is_tiny else wall_s <= 600)


def _with_interval(metric: dict[str, Any]) -> str:
    value, low, high = (100 * metric[key] for key in ("value", "ci_low", "ci_high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}] %, n = {metric['n']}"


@contextmanager
def _no_progress(_title: str, _total: int | None) -> Iterator[Callable[..., None]]:
    yield lambda *_, **__: None


def _smaller(config: TrainConfig, **sections: dict[str, Any]) -> TrainConfig:
    update = {name: getattr(config, name).model_copy(update=own) for name, own in sections.items()}
    return config.model_copy(update=update)


CHECKS: dict[str, tuple[Callable[[Bench], None], int]] = {  # with the most seconds that each may take
    "machine": (check_machine, 40),
    "attention": (check_attention, 60),
    "update": (check_update, 120),
    "learner": (check_learner, 60),
    "sampler hf": (check_sampler_hf, 60),
    "sampler vllm": (check_sampler_vllm, 150),
    "rollouts": (check_rollouts, 150),
    "quickstart": (check_quickstart, 300),
    "run": (check_run, 600),
    "beside trl": (check_trl, 120),  # last: where it is not installed there is nothing to wait for
}
