"""What the learning tests share: a warm-started model, which takes minutes to make."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.run.train import run_training
from mcpagent.synth.generate import write_splits
from mcpagent.synth.templates.rules import generate_dataset
from mcpagent.synth.templates.template import load_templates
from mcpagent.tools.setup import open_tools


class WarmStart(NamedTuple):
    """1,600 training tasks, and the checkpoint that was warm-started on demonstrations of them."""

    tasks: Path
    checkpoint: Path


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> WarmStart:
    """MCPAGENT_WARM names a folder to keep it in, so that one warm start serves several runs of the tests."""
    kept = os.environ.get("MCPAGENT_WARM")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("warm")
    data, run = folder / "data", folder / "run"
    tasks, finished = data / "train.jsonl", run / "finished"
    config = load_train_config(
        [resource_path("configs/warm_start.yaml")], ["seed=0", f"data.train={tasks}"]
    ).config
    if not data.is_dir():
        with open_tools(config.tools) as tools:
            templates = load_templates(resource_path("templates/tasks"))
            made = tools.io.run(generate_dataset(tools.pool, templates, counts={"train": 1600}, seed=0))
        write_splits(made.tasks, data, overwrite=True)
    if not finished.is_file():
        outcome = run_training(config, run_dir=run)
        finished.write_text(str(outcome.last_checkpoint))
    return WarmStart(tasks, Path(finished.read_text()))
