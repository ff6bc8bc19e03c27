"""What rollouts cost: ours against the same work by hand, by transformers, and by other tools.

    python -m benchmarks.rollout w3        groups of multi-turn episodes over stdio, and the update on them
    python -m benchmarks.rollout generate  the embedded model at batch 96, against `generate` turn by turn
    python -m benchmarks.rollout latency   tools that take 0.5 to 5 s, against tools that take none

CPU seconds of this process with one thread; ratios are medians over rounds of neighbours, in alternating
order: on a machine that does other things too, only neighbours can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import operator
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks import generation, latency, models, w3
from benchmarks.beside_trl import last_line, trl_python
from mcpagent.core.trajectory import Trajectory
from mcpagent.models.adapters import MergedCopy, attach_lora
from mcpagent.models.tokens import Renderer
from mcpagent.train.batch.samples import sample_from_trajectory
from mcpagent.train.update import UpdateSettings, update_policy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", dest="as_json")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("w3")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--tasks", type=int, default=1, help="each with 8 attempts")
    command.add_argument("--model", type=Path, help="a model folder; default: the tiny shape, random weights")
    command.add_argument("--dtype", default="float32", help="of the weights")
    command.add_argument(
        "--micro-batch-tokens", type=int, default=8192, help="of the update: it takes memory"
    )
    command.add_argument("--alone", action="store_true", help="without the same work by hand")
    command.add_argument(
        "--beside-trl", action="store_true", help="its step as well; needs it (make .venv-trl/.installed)"
    )
    command = commands.add_parser("generate")
    command.add_argument("--rounds", type=int, default=5)
    command = commands.add_parser("latency")
    command.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {"w3": measure_w3, "generate": measure_generation, "latency": measure_latency}[options.command](
        options
    )
    if options.as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:<34}{value!s:>24}")


def measure_w3(options: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds; `ratio ...` is ours divided by theirs, round by round, or of the medians if it is
    TRL's."""
    model, tokenizer = models.tiny(options.model, dtype=options.dtype)
    work, renderer = w3.Work(tasks=options.tasks), Renderer(tokenizer)
    theirs = _of_trl(model, tokenizer, renderer, work, options) if options.beside_trl else {}
    adapted = attach_lora(model, models.LORA, seed=0).eval()
    costs = asyncio.run(_rounds(adapted, renderer, work, options.rounds, alone=options.alone))
    cpu_s = {name: [cost.cpu_s for cost in own] for name, own in costs.items()}
    updates = _updates(
        adapted,
        [cost.trajectories for cost in costs["ours"]],
        per_group=work.group,
        micro_batch_tokens=options.micro_batch_tokens,
    )
    ours = {
        "ours": statistics.median(cpu_s["ours"]),
        "ours, update": statistics.median(updates),
        "ours, whole step": statistics.median(map(operator.add, cpu_s["ours"], updates)),
    }
    return {
        "work": "w3",
        "tasks": work.tasks,
        **{f"cpu_s {name}": round(value, 3) for name, value in ours.items()},
        **{
            key: round(value, 3)
            for name, values in cpu_s.items()
            if name != "ours"
            for key, value in (
                (f"cpu_s {name}", statistics.median(values)),
                (f"ratio to {name}", _ratio(cpu_s["ours"], values)),
            )
        },
        **{
            key: round(value, 3)
            for name, of_trl in theirs.items()
            for key, value in (
                (f"cpu_s {name.replace('ours', 'TRL')}", of_trl),
                (f"ratio to {name.replace('ours', 'TRL')}", ours[name] / of_trl),
            )
        },
        "generated tokens": costs["ours"][-1].generated,
        "prefilled tokens": costs["ours"][-1].prefilled,
        **{
            f"prefilled tokens of {name}": own[-1].prefilled for name, own in costs.items() if name == "floor"
        },
        "loadavg": round(os.getloadavg()[0], 1),
    }


def _of_trl(
    model: Any, tokenizer: Any, renderer: Renderer, work: w3.Work, options: argparse.Namespace
) -> dict[str, float]:
    """Median CPU seconds of TRL's step on the same work, by the names of ours. Its passes of the update have
    at most as many tokens as ours."""
    python = trl_python()
    if python is None:
        raise SystemExit("TRL is not installed (make .venv-trl/.installed)")
    turns = [renderer.action_ids(work.text(turn)) for turn in range(work.calls + 1)]
    longest = sum(map(len, turns)) + 2 * work.prompt_words  # with prompt and results
    described = {
        "prompts": work.prompts,
        "attempts": work.group,
        "turns": turns,
        "dtype": options.dtype,
        "micro_batch": next(n for n in (8, 4, 2, 1) if n * longest <= options.micro_batch_tokens or n == 1),
        "steps": options.rounds,
        "warm_up": int(options.model is None),  # beside a large model it is nothing to speak of
    }
    with TemporaryDirectory(prefix="mcpagent-trl-") as name:
        folder = Path(name)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        (folder / "work.json").write_text(json.dumps(described))
        told = last_line([python, "-m", "benchmarks.trl_rollout", str(folder)])
    steps, rollouts = told["step_cpu_s"], told["rollout_cpu_s"]
    return {
        "ours": statistics.median(rollouts),
        "ours, update": statistics.median(map(operator.sub, steps, rollouts)),
        "ours, whole step": statistics.median(steps),
    }


def _updates(
    adapted: Any, batches: list[tuple[Trajectory, ...]], *, per_group: int, micro_batch_tokens: int
) -> list[float]:
    """CPU seconds of one update on each batch, after one that warms up."""
    learner = models.learner_of(adapted)
    seconds: list[float] = []
    for step, batch in enumerate([batches[0], *batches], start=1):
        samples = [sample_from_trajectory(trajectory) for trajectory in batch]
        started = time.process_time()
        update_policy(
            learner,
            models.graded(samples, per_group=per_group),
            settings=UpdateSettings(use_reference=False, micro_batch_tokens=micro_batch_tokens),
            first_optimizer_step=step,
            seed=step,
        )
        seconds.append(time.process_time() - started)
    return seconds[1:]


async def _rounds(
    adapted: Any, renderer: Renderer, work: w3.Work, rounds: int, *, alone: bool
) -> dict[str, list[w3.Cost]]:
    if alone:
        async with w3.ours(adapted, renderer, work) as side:
            return {"ours": [await side() for _ in range(rounds)]}
    merged = MergedCopy(adapted).model
    costs: dict[str, list[w3.Cost]] = {}
    async with (
        w3.ours(adapted, renderer, work) as ours,
        w3.floor(adapted, renderer, work) as floor,
        w3.floor(merged, renderer, work) as merged_floor,
    ):
        sides = {"ours": ours, "floor": floor, "floor, adapters merged": merged_floor}
        for number in range(rounds + 1):
            for name in sorted(sides, reverse=bool(number % 2)):
                cost = await sides[name]()
                if number:  # the first round warms up
                    costs.setdefault(name, []).append(cost)
    return costs


def measure_generation(options: argparse.Namespace) -> dict[str, Any]:
    """Sampled tokens by CPU second; medians over rounds."""
    result: dict[str, Any] = {"work": "generate"}
    for name, ragged in (("turns of one length", False), ("turns of 8 to 56 tokens", True)):
        turns = generation.draw_turns(ragged=ragged)
        model, _ = models.embedded()
        theirs = generation.by_generate(model, turns)
        ours = generation.by_policy(copy.deepcopy(model), turns)
        seconds: dict[str, list[float]] = {"ours": [], "generate": []}
        for number in range(options.rounds + 1):
            sides = [("ours", ours), ("generate", theirs)]
            for side, run in sides if number % 2 else sides[::-1]:
                cpu_s = run()
                if number:  # the first round warms up
                    seconds[side].append(cpu_s)
        for side, values in seconds.items():
            result[f"{name}, tokens/CPU s, {side}"] = round(turns.tokens / statistics.median(values))
        result[f"{name}, ours to generate"] = round(_ratio(seconds["generate"], seconds["ours"]), 3)
    return {**result, "loadavg": round(os.getloadavg()[0], 1)}


def measure_latency(options: argparse.Namespace) -> dict[str, Any]:
    """Tools that take 0.5 to 5 s against tools that take none."""
    model, tokenizer = models.tiny()
    renderer = Renderer(tokenizer)
    found: dict[bool, list[latency.Throughput]] = {False: [], True: []}
    for _ in range(options.rounds):
        for slow in (False, True):
            found[slow].append(asyncio.run(latency.measure(copy.deepcopy(model), renderer, slow=slow)))
    result: dict[str, Any] = {"work": "latency"}
    for unit in ("wall_s", "cpu_s"):
        rates = {slow: [own.tokens / getattr(own, unit) for own in found[slow]] for slow in found}
        result[f"tokens/{unit}, no latency"] = round(statistics.median(rates[False]))
        result[f"tokens/{unit}, 0.5 to 5 s"] = round(statistics.median(rates[True]))
        result[f"share kept, {unit}"] = round(_ratio(rates[True], rates[False]), 3)
    return {**result, "loadavg": round(os.getloadavg()[0], 1)}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the quotients of neighbours."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
