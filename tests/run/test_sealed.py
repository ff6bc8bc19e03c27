"""Whatever reads a checkpoint of a training run refuses one that is not what was written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mcpagent.checks.doctor import check_model
from mcpagent.checks.smoke import smoke
from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import CheckStatus
from mcpagent.errors import UserError
from mcpagent.models.load import load_config, load_tokenizer
from mcpagent.run.evaluate import evaluate_model
from mcpagent.run.export import export
from mcpagent.run.rollout import collect_rollouts
from mcpagent.run.train import run_training
from mcpagent.storage.run_folder import RunFolder
from tests.run.world import SHORT, TRAIN, short_run
from tests.storage.test_checkpoints import DAMAGES, flipped


def configured(model: Path | str, *overrides: str) -> TrainConfig:
    settings = ("data.max_tasks=2", "training.max_steps=1", "training.batch_size=1", SHORT, *overrides)
    return short_run(model, TRAIN, *settings, base=resource_path("configs/quickstart.yaml"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A run of all weights, and one of adapters on its checkpoint."""
    folder = tmp_path_factory.mktemp("sealed")
    run_training(configured(tiny_checkpoint, "finetune.mode=full"), run_dir=folder / "full")
    run_training(configured(folder / "full", "finetune.mode=lora"), run_dir=folder / "lora")
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """Copies, to be damaged; the adapters' base stays where it was trained."""
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


READERS: dict[str, Callable[[Path, Path], object]] = {
    "eval": lambda run, _: evaluate_model(configured("x"), model=str(run)),
    "rollout": lambda run, out: collect_rollouts(
        configured("x"), policy=f"{run}@latest", out=out / "r.jsonl"
    ),
    "export": lambda run, out: export(run, out / "exported"),
    "export --merge": lambda run, out: export(run, out / "exported", merge=True),
    "smoke": lambda run, _: smoke(backend="hf", model=str(run), console=Console()),
    "warm start": lambda run, out: run_training(configured(run), run_dir=out / "new"),
    "tokenizer": lambda run, _: load_tokenizer(str(run)),
    "configuration": lambda run, _: load_config(str(run)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_flipped_bit_stops_every_reader_before_anything_is_written(
    runs: Path, tmp_path: Path, kind: str, reader: str
) -> None:
    checkpoint = RunFolder(runs / kind).checkpoint_dir(1)
    flipped(checkpoint, "adapter_model.safetensors" if kind == "lora" else "model.safetensors")
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"model\.safetensors is not what was written"):
        READERS[reader](runs / kind, out)
    assert not out.exists() or not list(out.rglob("*.*"))


@pytest.mark.parametrize("what", [name for name in DAMAGES if name != "a flipped bit"])
def test_every_damage_stops_an_evaluation(runs: Path, what: str) -> None:
    checkpoint = RunFolder(runs / "full").checkpoint_dir(1)
    DAMAGES[what](checkpoint)
    with pytest.raises(UserError, match="the checkpoint cannot be used") as caught:
        evaluate_model(configured("x"), model=str(checkpoint))
    assert caught.value.where == str(checkpoint)


def test_doctor_says_what_is_wrong_with_the_folder(runs: Path) -> None:
    flipped(RunFolder(runs / "full").checkpoint_dir(1), "tokenizer.json")
    (check,) = check_model(str(runs / "full"), tool_format="auto", catalog=())
    assert check.status is CheckStatus.FAIL and "tokenizer.json is not what was written" in check.detail


def test_a_resumed_run_refuses_a_damaged_state(runs: Path) -> None:
    flipped(RunFolder(runs / "full").checkpoint_dir(1), "trainer_state/optimizer.safetensors")
    config = load_train_config([runs / "full" / "config.yaml"], ["training.max_steps=2"]).config
    with pytest.raises(UserError, match=r"optimizer\.safetensors is not what was written"):
        run_training(config, run_dir=runs / "full", resume=True)


def test_adapters_are_refused_where_their_base_is_damaged(trained: Path, tmp_path: Path) -> None:
    base = RunFolder(trained / "full").checkpoint_dir(1)
    kept = tmp_path / "kept"
    shutil.copytree(base, kept)
    try:
        flipped(base)
        for reader in ("eval", "export --merge", "warm start"):
            with pytest.raises(UserError, match=r"model\.safetensors is not what was written") as caught:
                READERS[reader](trained / "lora", tmp_path / "out")
            assert caught.value.where == str(base)
    finally:
        shutil.rmtree(base)
        shutil.copytree(kept, base)


def test_a_model_name_may_be_a_run_and_the_run_on_it_keeps_the_checkpoint_that_it_meant(
    trained: Path,
) -> None:
    saved = load_train_config([trained / "lora" / "config.yaml"]).config
    assert saved.model.name == str(RunFolder(trained / "full").checkpoint_dir(1))
