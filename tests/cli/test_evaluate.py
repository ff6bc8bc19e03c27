from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mcpagent.cli.evaluate import app
from mcpagent.cli.options import ConfigOptions
from mcpagent.config.loader import dump_config
from mcpagent.console import Console, metric_row
from mcpagent.core.records import Metric
from mcpagent.storage.run_folder import RunFolder
from tests.run.world import SHORT, TRAIN, config, samples
from tests.running import mcpagent


@pytest.fixture(scope="module")
def run(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one checkpoint, trained with settings of its own."""
    trained = config("rollout.max_new_tokens=3", "seed=9", "data.max_tasks=1", "tools.timeout_s=7")
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    made = RunFolder.create(folder, config_yaml=dump_config(trained), manifest={})
    shutil.copytree(tiny_checkpoint, made.checkpoint_dir(4))
    return folder


def test_eval_checkpoint_prints_one_document_and_writes_it_with_the_trajectories(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "eval.json"
    done = mcpagent(
        "eval",
        "checkpoint",
        run,
        "--data",
        TRAIN,
        "--samples",
        "2",
        "--set",
        "data.max_tasks=2",
        "--out",
        out,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document == json.loads(out.read_text())
    wanted = {"task_success", "tool_sequence_accuracy", "mean_reward", "invalid_call_rate", "mean_turns"}
    assert wanted <= set(document["metrics"])
    assert all(set(metric) == {"value", "ci_low", "ci_high", "n"} for metric in document["metrics"].values())
    assert (document["n_tasks"], document["n_episodes"], document["unscored"]) == (2, 4, 0)
    assert set(document["by_complexity"]) == {task.truth.complexity for task in samples(count=2)}
    made = document["provenance"]
    # Several samples: temperature 1. The run's own limits, but neither its seed nor its number of tasks.
    assert (made["temperature"], made["max_new_tokens"], made["seed"]) == (1.0, 3, 0)
    assert made["tools"]["timeout_s"] == 7.0
    assert made["policy"]["path"].endswith("step-000004")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "eval.json",
        "eval.jsonl.zst",
        "eval.safetensors",
    ]


def test_eval_model_and_compare_are_readable(tiny_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "base.json"
    options = ("--data", TRAIN, "--set", "data.max_tasks=3", "--set", SHORT, "--out", out)
    done = mcpagent("eval", "model", tiny_checkpoint, *options)
    assert done.returncode == 0, done.stderr
    assert "3 episodes of 3 tasks" in done.stdout and "95 % interval" in done.stdout
    assert f"written   {out} and {tmp_path / 'base.jsonl.zst'}" in done.stdout
    assert json.loads(out.read_text())["provenance"]["temperature"] == 0.0
    in_process = CliRunner()
    compared = in_process.invoke(app, ["compare", str(out), str(tmp_path / "base.jsonl.zst")])
    assert compared.exit_code == 0, compared.output
    assert "no difference shown (p = 1)" in compared.stdout
    assert "b wins 0 tasks, loses 0, ties 3" in compared.stdout
    document = json.loads(in_process.invoke(app, ["compare", str(out), str(out), "--json"]).stdout)
    assert {"a", "b", "difference", "p_value", "wins", "losses", "ties", "verdict"} <= set(document)
    assert document["difference"]["value"] == 0.0


def temperature(*, samples: int = 1, given: float | None = None, settings: tuple[str, ...] = ()) -> float:
    default = 0.0 if samples == 1 else 1.0
    options = ConfigOptions(settings=settings)
    config = options.config(Console(), temperature=given, default_temperature=default)
    return config.rollout.temperature


def test_an_option_wins_over_a_setting_and_a_setting_over_the_default() -> None:
    assert (temperature(), temperature(samples=4)) == (0.0, 1.0)
    assert temperature(settings=("rollout.temperature=0.7",)) == 0.7
    assert temperature(settings=("temperature=0.7",)) == 0.7
    assert temperature(settings=("rollout.temperature=0.7",), given=0.3) == 0.3


def test_a_run_lends_its_settings_unless_a_config_is_named(run: Path, tmp_path: Path) -> None:
    of_run = ConfigOptions().config(Console(), policy=str(run))
    assert (of_run.rollout.max_new_tokens, of_run.seed, of_run.data.max_tasks) == (3, 0, None)
    chosen = ConfigOptions(seed=2, settings=["data.max_tasks=5"])
    assert chosen.config(Console(), policy=str(run)).data.max_tasks == 5
    other = tmp_path / "other.yaml"
    other.write_text("rollout: {max_new_tokens: 11}\nseed: 4\n")
    named = ConfigOptions(files=[other]).config(Console(), policy=str(run))
    assert (named.rollout.max_new_tokens, named.seed) == (11, 4)


def test_a_servers_path_may_hold_anything(tmp_path: Path) -> None:
    odd = tmp_path / "my: {servers} # 1.json"
    assert ConfigOptions(servers=odd).config(Console()).tools.servers == str(odd)


@pytest.mark.parametrize(
    ("metric", "options", "cells"),
    [
        (
            Metric(value=0.456, ci_low=0.4, ci_high=0.5, n=9),
            {"is_rate": True},
            ("45.6 %", "40.0 to 50.0", "9"),
        ),
        (Metric(value=1.5, ci_low=None, ci_high=None, n=1), {"is_rate": False}, ("1.500", "-", "1")),
        (Metric(value=None, ci_low=None, ci_high=None, n=0), {"is_rate": True}, ("-", "-", "0")),
        (
            Metric(value=0.1, ci_low=-0.05, ci_high=0.25, n=4),
            {"is_rate": True, "signed": True},
            ("+10.0 %", "-5.0 to +25.0", "4"),
        ),
    ],
)
def test_a_metric_is_shown_with_its_interval_and_n(
    metric: Metric, options: dict[str, bool], cells: tuple[str, ...]
) -> None:
    assert metric_row("x", metric, **options) == ("x", *cells)
