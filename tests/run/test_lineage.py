"""What a checkpoint stands on is recorded and proved: what is not the model that was trained is one error."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mcpagent.errors import UserError
from mcpagent.models.load import load_model
from mcpagent.run.export import export
from mcpagent.run.train import run_training
from mcpagent.storage.checkpoints import SEAL_FILE, seal
from mcpagent.storage.lineage import LINEAGE_FILE, fingerprint
from mcpagent.storage.run_folder import RunFolder
from tests.run.test_starts import configured
from tests.run.world import three_splits

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_splits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, data: Path) -> Path:
    """A base; a warm start on it; a run that goes on with its adapters, and one that merged them."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(tiny_checkpoint, folder / "base")
    sft = ("algorithm=sft", "training.eval_samples=0", "training.max_steps=3")
    run_training(configured(folder / "base", data, *sft), run_dir=folder / "warm")
    run_training(configured(folder / "warm", data), run_dir=folder / "going on")
    run_training(configured(folder / "warm", data, "lora.r=4"), run_dir=folder / "merged")
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """Copies, which name each other where the originals name theirs."""
    return Path(shutil.copytree(made, tmp_path / "made"))


def opened(name: Path) -> Any:
    return load_model(str(name), dtype=torch.float32, device=torch.device("cpu"))


def other_weights(file: Path) -> None:
    save_file({name: tensor + 0.05 for name, tensor in load_file(file).items()}, file)


def checkpoint(run: Path) -> Path:
    return RunFolder.open(run).checkpoint_dir(1)


def test_a_base_that_was_replaced_is_refused(made: Path) -> None:
    weights = made / "base" / "model.safetensors"
    kept = weights.read_bytes()
    other_weights(weights)
    try:
        with pytest.raises(UserError, match=r"other weights than those that .*base holds now") as caught:
            opened(made / "going on")
        assert caught.value.where == str(checkpoint(made / "going on"))
    finally:
        weights.write_bytes(kept)


def test_the_start_of_a_run_that_was_replaced_is_refused(runs: Path) -> None:
    start = runs / "merged" / "start"
    other_weights(start / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors is not what was written"):
        opened(runs / "merged")
    (start / SEAL_FILE).unlink()
    seal(start)
    with pytest.raises(UserError, match=r"other weights than those that .*start holds now"):
        opened(runs / "merged")


def test_a_checkpoint_without_the_start_of_its_run_says_what_is_missing(runs: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(checkpoint(runs / "merged"), tmp_path / "alone" / "checkpoints" / "copy")
    with pytest.raises(UserError, match=r"is not there: .*start") as caught:
        opened(alone)
    assert "copy the whole run folder" in (caught.value.remedy or "")


def test_adapters_of_another_run_are_told_by_the_probe(runs: Path, tmp_path: Path) -> None:
    export(runs / "going on", tmp_path / "exported")
    name = "adapter_model.safetensors"
    shutil.copyfile(last_of_warm(runs) / name, tmp_path / "exported" / name)
    with pytest.raises(UserError, match=r"is not the model that was trained: .* nats a token") as caught:
        opened(tmp_path / "exported")
    assert caught.value.where == str(tmp_path / "exported")


@pytest.mark.parametrize("lost", ["adapter_model.safetensors", "adapter_config.json", LINEAGE_FILE])
def test_half_a_copy_is_refused(runs: Path, lost: str) -> None:
    (checkpoint(runs / "going on") / lost).unlink()
    with pytest.raises(UserError, match=f"it lacks {lost}"):
        opened(runs / "going on")


def last_of_warm(made: Path) -> Path:
    """What the runs that began with the warm start recorded as their model."""
    return RunFolder.open(made / "warm").checkpoint_dir(3)


def test_a_checkpoint_of_a_run_without_its_record_is_refused(runs: Path) -> None:
    folder = checkpoint(runs / "going on")
    for name in (LINEAGE_FILE, SEAL_FILE):
        (folder / name).unlink()
    seal(folder)
    with pytest.raises(UserError, match="does not record what its adapters were trained on"):
        opened(runs / "going on")


def test_a_fingerprint_sees_a_change_in_a_block_of_a_large_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = torch.zeros(3 << 20)  # 12 MiB, of which a third is read
    save_file({"a": weights}, tmp_path / "model.safetensors")
    before = fingerprint(tmp_path)
    weights[1000:-1000] += 1e-3
    save_file({"a": weights}, tmp_path / "model.safetensors")
    assert fingerprint(tmp_path) != before
    save_file({"b": torch.zeros(3 << 20)}, tmp_path / "model.safetensors")
    assert fingerprint(tmp_path) != before
