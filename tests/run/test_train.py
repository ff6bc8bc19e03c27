"""`mcpagent train` as a user runs it: the plan, refusals, how a run ends, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

from mcpagent.cli.main import load_app
from mcpagent.config.environment import resource_path
from mcpagent.errors import InUseError, UserError
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.runs import list_runs
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.tools.metrics import PoolMetrics
from tests.running import BOUND_S, Command, wait_for


def mcpagent_train(*options: str) -> Result:
    """The command in this process, which has torch in memory already."""
    return CliRunner().invoke(load_app("train"), list(options))


def refused(done: Result) -> str:
    """The one message that `mcpagent.cli.main` would print."""
    assert isinstance(done.exception, UserError), done.output
    return str(done.exception)


@pytest.fixture
def settings(tiny_checkpoint: Path, tmp_path: Path) -> list[str]:
    """A run of two short steps in `tmp_path`/train."""
    chosen = {
        "model.name": tiny_checkpoint,
        "data.train": resource_path("data/samples/train.jsonl"),
        "training.max_steps": 2,
        "training.batch_size": 2,
        "rollout.group_size": 2,
        "rollout.max_new_tokens": 4,
        "reward.control": "random",
        "output_dir": tmp_path,
        "name": "train",
    }
    options = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    return ["--config", str(resource_path("configs/quickstart.yaml")), *options]


def test_the_plan_counts_what_the_model_has_and_writes_nothing(
    settings: list[str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    plans: dict[str, dict[str, Any]] = {}
    for mode in ("lora", "full"):
        done = mcpagent_train(*settings, "--mode", mode, "--dry-run", "--json")
        assert done.exit_code == 0, done.output
        plans[mode] = json.loads(done.stdout)
    weights = load_file(tiny_checkpoint / "model.safetensors")
    parameters = sum(tensor.size for tensor in weights.values())
    # LoRA of rank 16 on each linear layer inside the network: (in + out) x 16.
    linear = [t.shape for name, t in weights.items() if name.endswith("_proj.weight")]
    adapters = sum(16 * (rows + columns) for rows, columns in linear)
    assert plans["full"]["parameters"] == plans["full"]["trained_parameters"] == parameters
    assert plans["lora"]["trained_parameters"] == adapters
    for plan in plans.values():
        assert (plan["steps"], plan["optimizer_steps"], plan["episodes_per_step"]) == (2, 2, 4)
        assert (plan["backend"], plan["backend_reason"]) == ("hf", "rollout.backend is hf")
        assert plan["memory_gib"] > plan["checkpoint_gib"] > 0
    # Weights and two moments in float32.
    assert plans["full"]["checkpoint_gib"] == pytest.approx(parameters * 12 / 2**30)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_to_plan_for_is_refused_without_a_plan(settings: list[str]) -> None:
    assert "add --dry-run" in refused(mcpagent_train(*settings, "--gpu-memory", "80"))


def test_every_algorithm_of_the_option_has_a_plan(settings: list[str]) -> None:
    for algo, updates in (("grpo", 2), ("ppo", 8), ("sft", 2)):
        # Two steps; the preset of ppo takes two epochs of two minibatches, on its own value head.
        done = mcpagent_train(*settings, "--algo", algo, "--dry-run", "--json")
        assert done.exit_code == 0, done.output
        plan = json.loads(done.stdout)
        assert (plan["algorithm"], plan["optimizer_steps"]) == (algo, updates)


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_run_that_evaluates_needs_tasks_for_it_beside_its_own_or_by_name(
    settings: list[str], dry_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = resource_path("data/samples").absolute()
    alone = tmp_path / "alone" / "train.jsonl"
    alone.parent.mkdir()
    shutil.copy(samples / "train.jsonl", alone)
    monkeypatch.chdir(tmp_path)  # without data/processed
    evaluating = [*settings, "--set", "training.eval_every=1", "--set", f"data.train={alone}"]
    assert "there is no validation dataset" in refused(mcpagent_train(*evaluating, *dry_run))
    beside = alone.with_name("validation.jsonl")
    shutil.copy(samples / "validation.jsonl", beside)
    plan = json.loads(mcpagent_train(*evaluating, "--dry-run", "--json").stdout)
    assert plan["validation"] == str(beside)
    never = mcpagent_train(*evaluating, "--set", "training.eval_every=0", "--dry-run", "--json")
    assert json.loads(never.stdout)["validation"] == "none"


def test_the_plan_is_a_table_that_says_why_this_backend(settings: list[str]) -> None:
    done = mcpagent_train(*settings, "--backend", "auto", "--dry-run")
    assert done.exit_code == 0, done.output
    for word in ("backend reason", "optimizer steps", "memory gib", "kept checkpoints"):
        assert word in done.stdout


def test_a_missing_run_and_a_wrong_option_are_one_message_each(settings: list[str], tmp_path: Path) -> None:
    for algo in ("grpo", "sft"):
        assert "not a run folder" in refused(mcpagent_train(*settings, "--resume", "--algo", algo))
    assert "mode" in refused(mcpagent_train(*settings, "--mode", "half"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_says_how_it_ended_and_a_resume_goes_on(settings: list[str], tmp_path: Path) -> None:
    done = mcpagent_train(*settings, "--set", "training.max_steps=1")
    assert done.exit_code == 0, done.output
    assert "ended       after step 1: completed" in done.stdout
    rows = [line.split() for line in done.stderr.splitlines()]
    head = next(i for i, row in enumerate(rows) if row[:2] == ["step", "reward"])
    assert rows[head] == ["step", "reward", "success", "KL", "length", "tokens/s"]
    step = next(row for row in rows[head + 1 :] if row[:1] == ["1"])
    record = RunFolder.open(tmp_path / "train").metrics()[0]
    shown = [f"{record['reward_mean']:.3f}", "0%", f"{record['tokens'] / record['episodes']:.0f}"]
    assert [step[1], step[2], step[4]] == shown
    log = (tmp_path / "train" / "logs" / "run.log").read_text()
    assert "step 0: begins after step 0 of 1" in log
    held_out = resource_path("data/samples/heldout.jsonl")
    assert f"checkpoints/step-000001 --data {held_out}\n" in done.stdout.replace(f"{tmp_path}/train/", "")
    again = mcpagent_train(*settings, "--resume", "--json")
    assert again.exit_code == 0, again.output
    document = json.loads(again.stdout)
    assert (document["steps"], document["stop_reason"]) == (2, "completed")
    other = refused(mcpagent_train(*settings, "--set", "optimization.learning_rate=0.5", "--resume"))
    assert "other settings of optimization.learning_rate" in other
    faster = ("--set", "optimization.learning_rate=0.5")
    assert refused(mcpagent_train("--resume", "--out", str(tmp_path / "train"), *faster)) == other

    weights = RunFolder.open(tmp_path / "train").checkpoint_dir(2) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    damaged = refused(mcpagent_train(*settings, "--set", "training.max_steps=3", "--resume"))
    assert "adapter_model.safetensors is not what was written" in damaged
    assert "the last good one is step-000001" in damaged


def test_a_supervised_run_tells_what_its_demonstrations_asked_of_the_servers(
    settings: list[str], tmp_path: Path
) -> None:
    options = [*settings, "--algo", "sft", "--set", "data.max_tasks=4"]
    for more in (["--set", "training.max_steps=1"], ["--resume"]):
        done = mcpagent_train(*options, *more)
        assert done.exit_code == 0, done.output
    run = RunFolder.open(tmp_path / "train")
    played = read_trajectories(run.trajectories / "demonstrations.jsonl.zst", with_tokens=False)
    calls = sum(len(t.tool_results) + len(t.state_results) for t in played)
    counted = [PoolMetrics.model_validate(record["tool_metrics"]).servers for record in run.metrics()]
    told = [sum(tool.calls for server in servers for tool in server.tools) for servers in counted]
    assert told == [calls, calls] != [0, 0], "each part made them anew"


def test_ctrl_c_leaves_a_checkpoint_says_how_to_go_on_and_exits_with_130(
    settings: list[str], tmp_path: Path
) -> None:
    process = Command(
        *(
            "train",
            *settings,
            "--set",
            "training.max_steps=100000",
            "--set",
            "training.save_frequency=100000",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "train" / "metrics.jsonl"
    wait_for(lambda: metrics.is_file() and metrics.stat().st_size > 0, process)
    for more in ([], ["--resume"]):
        with_other = mcpagent_train(*settings, *more)
        assert isinstance(with_other.exception, InUseError), with_other.output
        assert with_other.exception.process["pid"] == process.pid
        assert with_other.exception.process["command"] == "mcpagent train"
    listed = CliRunner().invoke(load_app("runs"), [str(tmp_path), "--json"])
    assert [(r["name"], r["state"]) for r in json.loads(listed.stdout)] == [("train", "running")]
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    run = RunFolder.open(tmp_path / "train")
    steps = [record["step"] for record in run.metrics()]
    assert run.latest_checkpoint() == run.checkpoint_dir(steps[-1])
    assert f"stopped after step {steps[-1]}, which is kept" in err
    assert f"mcpagent train --config {run.config_path} --resume" in err
    end = f"training.max_steps={steps[-1] + 1}"
    more = mcpagent_train("--config", str(run.config_path), "--set", end, "--resume")
    assert more.exit_code == 0, more.output
    assert [record["step"] for record in run.metrics()] == [*steps, steps[-1] + 1]


def test_a_run_without_a_name_gets_its_own_and_resume_takes_the_last_of_its_algorithm(
    settings: list[str], tmp_path: Path
) -> None:
    unnamed = [*settings[:-2], "--set", "training.max_steps=1"]
    assert settings[-1] == "name=train"
    folders = []
    for algo in ("grpo", "grpo", "sft"):
        done = mcpagent_train(*unnamed, "--algo", algo, "--set", "data.max_tasks=4", "--json")
        assert done.exit_code == 0, done.output
        folders.append(Path(json.loads(done.stdout)["run_dir"]))
    assert all(folder.parent == tmp_path and folder.name.startswith("train-2") for folder in folders)
    assert len(set(folders)) == 3
    resumed = mcpagent_train(*unnamed[:-2], "--set", "data.max_tasks=4", "--resume", "--json")
    assert resumed.exit_code == 0, resumed.output
    document = json.loads(resumed.stdout)
    assert (Path(document["run_dir"]), document["steps"]) == (folders[1], 2)
    table = CliRunner().invoke(load_app("runs"), [str(tmp_path)])
    states = {run.name: (run.kind, run.state, run.steps) for run in list_runs(tmp_path)}
    assert states == {
        folders[0].name: ("grpo", "finished", 1),
        folders[1].name: ("grpo", "finished", 2),
        folders[2].name: ("sft", "finished", 1),
    }
    assert all(name in table.output for name in states)


def test_the_optimiser_steps_after_batch_size_times_accumulation_prompts(
    settings: list[str], tmp_path: Path
) -> None:
    """Two batches of two accumulated are one batch of four: the same episodes, the same step, the same
    weights; the loss is normalised over all four prompts."""
    accumulated = ("training.batch_size=2", "training.gradient_accumulation_steps=2")
    at_once = ("training.batch_size=4", "grpo.minibatches=1")
    weights, lines = [], []
    for name, chosen in (("accumulated", accumulated), ("at-once", at_once)):
        own = [*chosen, "training.max_steps=1", "training.eval_every=0", f"name={name}"]
        done = mcpagent_train(*settings, *(word for text in own for word in ("--set", text)), "--json")
        assert done.exit_code == 0, done.output
        run = RunFolder(tmp_path / name)
        lines.append(run.metrics())
        weights.append(load_file(run.latest_checkpoint() / "adapter_model.safetensors"))
    assert [line["trained_samples"] for line in lines[0]] == [line["trained_samples"] for line in lines[1]]
    assert len(list(read_trajectories(RunFolder(tmp_path / "accumulated").trajectory_stem(1)))) == 8
    assert [len(metrics) for metrics in lines] == [1, 1]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])


def test_an_epoch_has_as_many_steps_as_optimiser_batches(settings: list[str]) -> None:
    whole = ["training.max_steps=null", "training.gradient_accumulation_steps=2", "data.max_tasks=10"]
    for algo in ("grpo", "sft"):
        options = [word for text in whole for word in ("--set", text)]
        done = mcpagent_train(*settings, *options, "--algo", algo, "--dry-run", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["steps"] == 3  # 10 tasks in batches of 2 x 2


HALF = r".*device cpu computes float16 slower.*use float32 or bfloat16"
VALIDATING = "training.eval_every=1"
# What is set -> the beginning of what is said.
REFUSED = {
    ("device=auto", "training.mixed_precision=fp16", "model.dtype=float16"): rf"model\.dtype{HALF}",
    ("device=auto", "training.mixed_precision=fp16"): rf"training\.mixed_precision{HALF}",
    ("finetune.mode=qlora",): r".*qlora needs a CUDA GPU.*finetune\.mode=lora",
    ("model.attn_implementation=flash_attention_2",): "",
    ("finetune.mode=lora", "lora.target_modules=[query]"): "",
    ("model.name=./nowhere",): "",
    ("model.name=nowhere/at-all/really",): "",
    ("tracking.backends=[weave]",): "",
    ("data.train=nowhere.jsonl",): "",
    ("tools.servers=nowhere.json",): "",
}
REFUSED_BY_GRPO = {  # sft makes the model, samples with hf alone, and does not evaluate as it goes
    ("rollout.backend=vllm",): ".*vllm is not installed",
    ("model.name=embedded",): "",
    (VALIDATING, "data.validation=nowhere.jsonl"): "",
    (VALIDATING, "data.validation=empty.jsonl"): "",
    (VALIDATING, "data.validation=broken.jsonl"): "",
}


@pytest.mark.parametrize(
    ("algo", "wrong", "said"),
    [("grpo", *case) for case in (REFUSED | REFUSED_BY_GRPO).items()]
    + [("sft", *case) for case in REFUSED.items()],
)
def test_a_run_and_its_plan_are_refused_in_the_same_words_and_leave_no_folder(
    algo: str,
    wrong: tuple[str, ...],
    said: str,
    settings: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text("")
    Path("broken.jsonl").write_text('{"prompt": []}\n')
    before = sorted(path.name for path in tmp_path.iterdir())
    sets = [word for text in (*wrong, f"output_dir={tmp_path / 'out'}") for word in ("--set", text)]
    run = refused(mcpagent_train(*settings, "--algo", algo, *sets))
    assert re.match(said, run, re.DOTALL)
    assert refused(mcpagent_train(*settings, "--algo", algo, *sets, "--dry-run")) == run
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_gpu_run_is_planned_on_a_machine_without_one(settings: list[str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    gpu = ["--device", "cuda", "--set", "model.dtype=auto"]
    for options in (["--gpu-memory", "80"], []):
        done = mcpagent_train(*settings, *gpu, *options, "--dry-run", "--json")
        assert done.exit_code == 0, done.output
        plan = json.loads(done.stdout)
        assert (plan["device"], plan["dtype"]) == ("cuda", "bfloat16")
        assert plan["device_memory_gib"] == (80 if options else None)
        assert plan["fits"] is (True if options else None)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_does_not_fit_is_told_what_to_lower(
    settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    large = ["--set", "model.name=Qwen/Qwen3-0.6B", "--set", "rollout.num_envs=4000"]
    large += ["--set", "training.batch_size=4000"]
    done = mcpagent_train(*settings, *large, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert plan["fits"] is False
    assert any("lower one of: rollout.num_envs (it is 4000: 2000)" in note for note in plan["notes"])
    assert "lower one of: rollout.num_envs (it is 4000: 2000)" in done.stderr
