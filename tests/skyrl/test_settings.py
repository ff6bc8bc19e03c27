"""SkyRL's own validation of what a run is mapped onto, and the run folder that comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from skyrl.train.dataset import PromptDataset

from mcpagent.config.loader import load_train_config
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.engines.skyrl.config import FOLLOWED
from mcpagent.engines.skyrl.engine import ENGINE
from mcpagent.engines.skyrl.record import RunRecorder, import_checkpoints, write_records
from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import choose_checkpoint, damage
from mcpagent.storage.lineage import Base, read_lineage
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.start import Start
from tests.skyrl.world import ROOT, TOKENIZER, sample_records


@pytest.mark.parametrize("preset", ["lora", "full", "ppo"])
def test_skyrls_own_validation_accepts_every_preset_that_it_can_do(preset: str, tmp_path: Path) -> None:
    config = load_train_config([ROOT / "configs" / f"{preset}.yaml"]).config
    settings = ENGINE.resolved(config, run_dir=tmp_path)
    assert settings["environment"]["skyrl_gym"]["MCPToolEnv"]["tools"]["limited"] is True
    estimator = "gae" if preset == "ppo" else "grpo"
    assert settings["trainer"]["algorithm"]["advantage_estimator"] == estimator
    assert "trainer.seed" not in settings  # SkyRL's tree, whole


@pytest.mark.parametrize("preset", ["qlora", "quickstart"])
def test_the_other_presets_are_refused_by_the_names_of_their_settings(preset: str, tmp_path: Path) -> None:
    config = load_train_config([ROOT / "configs" / f"{preset}.yaml"]).config
    with pytest.raises(UserError, match="SkyRL cannot do") as error:
        ENGINE.resolved(config, run_dir=tmp_path)
    assert any(f"  {key} is " in str(error.value) for key in FOLLOWED)


def test_skyrls_dataset_reads_the_records(tmp_path: Path) -> None:
    tasks = [Task.model_validate(record) for record in sample_records()]
    path = tmp_path / "train.jsonl"
    write_records(path, tasks)
    dataset = PromptDataset([str(path)], TOKENIZER, 4096, num_workers=1)
    assert len(dataset) == len(tasks)
    prompt, env_class, extras, _ = dataset[0]
    assert env_class == "MCPToolEnv" and prompt[0]["role"] == "system"
    truth = json.loads(extras["reward_spec"]["ground_truth"])
    assert truth["task_id"] == tasks[0].truth.task_id


def test_an_adapter_of_skyrl_becomes_a_checkpoint_of_the_run(tmp_path: Path) -> None:
    base = tmp_path / "base"
    TOKENIZER.save_pretrained(base)
    run = RunFolder.create(tmp_path / "run", config_yaml="seed: 0\n", manifest={})
    for step, success in ((1, 0.5), (2, 0.25)):
        folder = run.path / "skyrl" / "ckpts" / f"global_step_{step}" / "policy" / "lora_adapter"
        folder.mkdir(parents=True)
        save_file({"a": torch.full((2,), float(step))}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
        run.append_metrics({"step": step, "validation_success_all": success})
    start = Start(base=Base(place=str(base), sha256="of the base"))
    made = import_checkpoints(run, start=start)
    assert [path.name for path in made] == ["step-000001", "step-000002"]
    assert [damage(path) for path in made] == [None, None]
    assert json.loads((made[0] / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    lineage = read_lineage(made[0])
    assert lineage is not None and lineage.base == Base(place=str(base), sha256="of the base")
    assert choose_checkpoint(run.path).path == made[0]  # the best evaluation
    assert import_checkpoints(run, start=start) == []


def test_an_evaluation_of_which_nothing_was_scored_has_no_success(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", config_yaml="seed: 0\n", manifest={})
    lost = Trajectory(id="e", task_id="t", group_id="t", stop_reason=StopReason.FAILED)
    config = load_train_config([], ["data.train=tasks.jsonl"]).config
    recorder = RunRecorder(run, config, take=lambda phase: [lost] * (phase == "eval"), state=dict)
    recorder.log({}, step=1)
    recorder.finish()
    (record,) = run.metrics()
    assert record["validation_success"] is None
    assert (record["validation_success_all"], record["validation_unscored"]) == (0.0, 1)
