"""A pretrained model: its format, its health, its memory, and its export in another program.

The folder is that of MCPAGENT_REAL_MODEL, else ~/.cache/mcpagent/real-model; figures are of
Qwen2.5-Coder-0.5B-Instruct, in the dtype that `auto` is on this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from mcpagent.config.environment import resource_path
from mcpagent.env.tool_format import open_renderer
from mcpagent.models.load import load_tokenizer
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories

MODEL = Path(os.environ.get("MCPAGENT_REAL_MODEL", "~/.cache/mcpagent/real-model")).expanduser()
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not (MODEL / "config.json").is_file(),
        reason=f"there is no model in {MODEL}: MCPAGENT_REAL_MODEL names a folder with one",
    ),
]
DATA = str(resource_path("data/samples").absolute())
FEW = ("--no-eval", "--set", "training.max_steps=1", "--set", "data.max_tasks=16")


@dataclass(frozen=True)
class Ended:
    """A command that is over: what it printed, and the most memory that it held."""

    stdout: str
    stderr: str
    peak_gib: float


def mcpagent(*arguments: str, cwd: Path) -> Ended:
    out, err = cwd / "stdout", cwd / "stderr"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "mcpagent.cli.main", *arguments], cwd=cwd, stdout=stdout, stderr=stderr
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, err.read_text()[-4000:]
    return Ended(out.read_text(), err.read_text(), usage.ru_maxrss / 2**20)


def train(cwd: Path, *arguments: str) -> Ended:
    return mcpagent("train", "--mode", "lora", "--data", DATA, *FEW, *arguments, cwd=cwd)


@dataclass(frozen=True)
class Trained:
    """A supervised step and, on its weights, a step of GRPO, with the memory of both."""

    supervised: Path
    grpo: Path
    peaks_gib: dict[str, float]
    weights_gib: float


GRPO = (
    "--set",
    "training.batch_size=4",
    "--set",
    "rollout.group_size=8",
    "--set",
    "rollout.max_new_tokens=32",
    "--set",
    "rollout.max_steps_per_episode=2",
)
SUPERVISED = ("--algo", "sft", "--set", "training.batch_size=8", "--set", "optimization.learning_rate=2e-4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("real")
    supervised = train(folder, *SUPERVISED, "--model", str(MODEL), "--out", "sft")
    grpo = train(folder, *GRPO, "--model", "sft", "--out", "grpo")
    dtype = RunFolder.open(folder / "sft").config_path.read_text()
    itemsize = 2 if "dtype: bfloat16" in dtype else 4
    peaks = {"supervised": supervised.peak_gib, "grpo": grpo.peak_gib}
    print(f"\npeaks in GiB: {peaks}; weights {parameters() * itemsize / 2**30:.2f}")
    return Trained(folder / "sft", folder / "grpo", peaks, parameters() * itemsize / 2**30)


def parameters() -> int:
    with safe_open(MODEL / "model.safetensors", framework="np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


def test_auto_is_the_format_that_the_model_was_measured_to_write(trained: Trained) -> None:
    assert "tool_format: json" in RunFolder.open(trained.supervised).config_path.read_text()
    log = (trained.supervised / "logs" / "run.log").read_text()
    assert "never trained; tool format json is used" in log
    assert "calls are not learned" not in log


def test_training_on_tags_that_the_model_cannot_write_says_that_it_learns_no_calls(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        *SUPERVISED,
        *("--set", "rollout.tool_format=hermes", "--set", "training.max_steps=3"),
        *("--model", str(MODEL), "--out", "sft"),
    )
    assert "calls are not learned" in done.stderr
    begun = [record["calls_begun"] for record in RunFolder.open(tmp_path / "sft").metrics()]
    assert max(begun) < 0.01


@pytest.mark.parametrize("part", ["supervised", "grpo"])
def test_a_step_takes_at_most_three_times_the_memory_of_the_weights(part: str, trained: Trained) -> None:
    assert trained.peaks_gib[part] <= 3 * trained.weights_gib


def test_the_forecast_is_close_to_the_memory_that_a_step_takes(trained: Trained, tmp_path: Path) -> None:
    dry = ("--dry-run", "--json")
    forecasts = {
        "supervised": train(tmp_path, *SUPERVISED, "--model", str(MODEL), *dry),
        "grpo": train(tmp_path, *GRPO, "--model", str(trained.supervised), *dry),
    }
    for part, done in forecasts.items():
        said, seen = json.loads(done.stdout)["memory_gib"], trained.peaks_gib[part]
        print(f"{part}: forecast {said:.2f} GiB, measured {seen:.2f}")
        assert 0.6 < said / seen < 1.5


def test_the_merged_model_says_the_same_in_a_program_without_mcpagent(
    trained: Trained, tmp_path: Path
) -> None:
    """Every turn of ten tasks, in float32, greedy: on the same context both write the same text."""
    mcpagent("export", str(trained.grpo), "--merge", "--out", "merged", cwd=tmp_path)
    short = ("--set", "rollout.max_new_tokens=48", "--set", "rollout.max_steps_per_episode=2")
    mcpagent(
        *("rollout", "--policy", str(trained.grpo), "--data", f"{DATA}/train.jsonl", "--samples", "1"),
        *("--set", "data.max_tasks=10", "--temperature", "0", "--out", "episodes.jsonl.zst", *short),
        cwd=tmp_path,
    )
    turns: list[dict[str, Any]] = []
    ours: list[str] = []
    decode = open_renderer(load_tokenizer(str(MODEL)), name="real", tool_format="json")
    for trajectory in read_trajectories(tmp_path / "episodes.jsonl.zst"):
        context: list[int] = []
        for turn in trajectory.turns:
            context += turn.added_token_ids
            tokens = turn.completion.token_ids
            turns.append({"context": list(context), "tokens": len(tokens)})
            ours.append(decode.decode(tokens))
            context += tokens
    assert len(turns) >= 10
    (tmp_path / "turns.json").write_text(json.dumps(turns))
    script = Path(__file__).with_name("plain_turns.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "merged"), str(tmp_path / "turns.json")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    special = load_tokenizer(str(MODEL)).all_special_tokens
    for mark in special:
        ours = [text.replace(mark, "") for text in ours]
    assert theirs == ours
