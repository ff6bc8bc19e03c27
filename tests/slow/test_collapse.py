"""An induced collapse: a hundred times the learning rate on the embedded task."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.run.train import Watch, run_training
from mcpagent.storage.checkpoints import damage
from mcpagent.storage.run_folder import RunFolder, step_of
from tests.slow.conftest import WarmStart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("warmup_steps", [0, 20], ids=["at once", "step by step"])
def test_a_hundredfold_learning_rate_is_stopped_with_the_reason_and_a_good_checkpoint(
    warm: WarmStart, tmp_path: Path, warmup_steps: int
) -> None:
    preset = [resource_path("configs/quickstart.yaml")]
    usual = load_train_config(preset).config.optimization.learning_rate
    overrides = [
        f"data.train={warm.tasks}",
        f"model.name={warm.checkpoint}",
        "seed=0",
        f"optimization.learning_rate={100 * usual}",
        "training.save_frequency=1",
        f"training.warmup_steps={warmup_steps}",
    ]
    config = load_train_config(preset, overrides).config
    notes: list[str] = []
    outcome = run_training(config, run_dir=tmp_path / "run", watch=Watch(note=notes.append))
    run = RunFolder.open(tmp_path / "run")
    rates = [record["success_rate"] for record in run.metrics()]
    print(f"{outcome.stop_reason} after step {outcome.steps}; success {rates}; {notes}")
    assert outcome.stop_reason.startswith("health: ")
    assert outcome.steps < config.total_steps(n_tasks=1600)
    assert any(note.startswith("health, step") for note in notes)
    # What is named as the good one is whole, and its weights sampled well in the step after it.
    good = outcome.best_checkpoint
    assert damage(good) is None
    step = step_of(good)
    assert step is not None and step < outcome.steps
    assert rates[step] >= 0.5 * rates[0] > 0.1 >= rates[-1]
