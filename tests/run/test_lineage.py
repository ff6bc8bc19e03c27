"""What a checkpoint stands on is recorded and proved: what is not the model that was trained is one error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mcpagent.errors import UserError
from mcpagent.models.load import load_model
from mcpagent.models.probe import PROBE_FILE
from mcpagent.run.export import export
from mcpagent.run.train import train
from mcpagent.storage.checkpoints import SEAL_FILE, seal
from mcpagent.storage.lineage import LINEAGE_FILE, fingerprint
from mcpagent.storage.run_folder import RunFolder
from tests.run.test_starts import configured, furthest
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
    train(configured(folder / "base", data, *sft), run_dir=folder / "warm")
    train(configured(folder / "warm", data), run_dir=folder / "going on")
    train(configured(folder / "warm", data, "lora.r=4"), run_dir=folder / "merged")
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """Copies, which name each other where the originals name theirs."""
    return Path(shutil.copytree(made, tmp_path / "made"))


def opened(name: Path, notes: list[str] | None = None) -> Any:
    kept: list[str] = [] if notes is None else notes
    return load_model(str(name), dtype=torch.float32, device=torch.device("cpu"), on_note=kept.append)


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


def as_before(run: Path, base: Path) -> None:
    """A run as it was written before checkpoints said what they stand on: adapters trained over a warm start
    that was merged in memory, saved with the name of the base."""
    shutil.rmtree(run / "start", ignore_errors=True)
    for folder in RunFolder.open(run).all_checkpoints():
        for name in (LINEAGE_FILE, PROBE_FILE, SEAL_FILE):
            (folder / name).unlink()
        settings = folder / "adapter_config.json"
        document = json.loads(settings.read_text())
        settings.write_text(json.dumps({**document, "base_model_name_or_path": str(base)}))
        seal(folder)


def test_a_run_from_before_that_began_with_adapters_is_put_together_with_them(made: Path, runs: Path) -> None:
    as_before(runs / "merged", made / "base")
    notes: list[str] = []
    assert furthest(opened(runs / "merged", notes), runs / "merged") <= 1e-5
    (note,) = notes
    assert "its run began with the adapters" in note and "export" in note


@pytest.mark.parametrize("change", ["gone", "trained further"])
def test_a_run_from_before_whose_warm_start_is_not_what_it_was_is_refused(
    made: Path, runs: Path, change: str
) -> None:
    as_before(runs / "merged", made / "base")
    manifest = runs / "merged" / "manifest.json"
    document = json.loads(manifest.read_text())
    if change == "gone":
        document["model"]["path"] = str(runs / "no such run")
    else:
        document["model"]["weights_sha256"] = "of other weights"
    manifest.write_text(json.dumps(document))
    with pytest.raises(UserError, match="its run began with the adapters") as caught:
        opened(runs / "merged")
    assert "bring back" in (caught.value.remedy or "")


def test_a_run_from_before_on_a_whole_model_is_opened_with_a_note(made: Path, runs: Path) -> None:
    as_before(runs / "warm", made / "base")
    notes: list[str] = []
    opened(runs / "warm", notes)
    (note,) = notes
    assert f"{made / 'base'} is taken for it" in note


def test_a_run_from_before_goes_on_over_what_it_had_merged(made: Path, runs: Path, data: Path) -> None:
    as_before(runs / "merged", made / "base")
    config = configured(last_of_warm(made), data, "lora.r=4", "training.max_steps=2")
    train(config, run_dir=runs / "merged", resume=True)
    assert (runs / "merged" / "start" / "model.safetensors").is_file()
    for step in (1, 2):
        notes: list[str] = []
        opened(Path(f"{runs / 'merged'}@{step}"), notes)
        assert notes == []
    assert furthest(opened(runs / "merged"), runs / "merged") <= 1e-5


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
