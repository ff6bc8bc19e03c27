"""Which folder a name means, and whether it is what was written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import choose_checkpoint, damage, find_model, sealed_dir, verified
from mcpagent.storage.run_folder import RunFolder


def checkpoint(run: RunFolder, step: int, **state: object) -> Path:
    with sealed_dir(run.checkpoint_dir(step)) as draft:
        (draft / "trainer_state").mkdir()
        (draft / "config.json").write_text('{"model_type": "qwen3"}')
        (draft / "model.safetensors").write_bytes(bytes(range(256)) * 4)
        (draft / "trainer_state" / "state.json").write_text(json.dumps({"state": {"step": step, **state}}))
    return run.checkpoint_dir(step)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Five steps; the third was the best."""
    run = RunFolder.create(tmp_path / "run", config_yaml="name: run\n", manifest={})
    for step, best in ((0, None), (3, 3), (5, 3)):
        checkpoint(run, step, best_step=best)
    return run


def test_a_run_folder_means_its_best_checkpoint_and_others_have_names(run: RunFolder) -> None:
    best = choose_checkpoint(run.path)
    assert best.path == run.checkpoint_dir(3)
    assert best.why == f"the best of {run.path}; {run.path}@latest is step 5"
    for name, step in (("latest", 5), ("0", 0), ("000005", 5), ("best", 3)):
        assert choose_checkpoint(Path(f"{run.path}@{name}")).path == run.checkpoint_dir(step)
        assert choose_checkpoint(Path(f"{run.path}/@{name}")).path == run.checkpoint_dir(step)
    one = choose_checkpoint(run.checkpoint_dir(0))
    assert (one.path, one.why) == (run.checkpoint_dir(0), "")


def test_a_run_that_evaluated_nothing_means_its_latest_and_one_that_ended_ill_its_last_good(
    run: RunFolder,
) -> None:
    checkpoint(run, 6, best_step=None, good_step=3, is_ill=False)
    chosen = choose_checkpoint(run.path)
    assert chosen.path == run.checkpoint_dir(6) and "latest" in chosen.why
    checkpoint(run, 7, best_step=None, good_step=3, is_ill=True)
    assert choose_checkpoint(run.path).path == run.checkpoint_dir(3)


def test_a_step_that_is_not_there_is_an_error_that_names_those_that_are(run: RunFolder) -> None:
    with pytest.raises(UserError, match="no checkpoint of step 4") as caught:
        choose_checkpoint(Path(f"{run.path}@4"))
    assert "0, 3, 5" in (caught.value.remedy or "")
    shutil.rmtree(run.checkpoint_dir(3))
    with pytest.raises(UserError, match="best checkpoint, of step 3, is gone") as caught:
        choose_checkpoint(run.path)
    assert f"{run.path}@latest" in (caught.value.remedy or "")
    with pytest.raises(UserError, match="no such checkpoint"):
        choose_checkpoint(Path(f"{run.path}-typo@latest"))
    with pytest.raises(UserError, match="no such checkpoint"):
        choose_checkpoint(Path(f"{run.path}@newest"))


def test_a_folder_whose_own_name_has_an_at_sign_is_meant_itself(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run@5", config_yaml="", manifest={})
    checkpoint(run, 1)
    assert choose_checkpoint(run.path).path == run.checkpoint_dir(1)
    assert choose_checkpoint(Path(f"{run.path}@latest")).path == run.checkpoint_dir(1)


def test_a_hub_id_is_not_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunFolder) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model("Qwen/Qwen3-0.6B") is None
    # There is no folder called outputs here yet, and nothing on the hub is meant.
    for name in ("run/typo", "run@9", "nothing", "outputs/none"):
        with pytest.raises(UserError):
            find_model(name)
    found = find_model("run@latest")
    assert found is not None and found.path == Path("run/checkpoints/step-000005")


def flipped(folder: Path, name: str = "model.safetensors") -> None:
    whole = bytearray((folder / name).read_bytes())
    whole[len(whole) // 2] ^= 1
    (folder / name).write_bytes(whole)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flipped,
    "a flipped bit of the state": lambda f: flipped(f, "trainer_state/state.json"),
    "truncated": lambda f: (f / "model.safetensors").write_bytes(b"\0" * 1023),
    "a missing file": lambda f: (f / "config.json").unlink(),
    "a missing seal": lambda f: (f / "sha256.json").unlink(),
    "a broken seal": lambda f: (f / "sha256.json").write_text("[" * 100_000),
    "a seal of another kind": lambda f: (f / "sha256.json").write_text("[1]"),
    "weights beside": lambda f: (f / "adapter_model.safetensors").write_bytes(b"0"),
    "a file that changes what is loaded": lambda f: (f / "adapter_config.json").write_text("{}"),
    "code beside": lambda f: (f / "modeling.py").write_text("raise SystemExit"),
    "a linked folder": lambda f: (f / "more").symlink_to(f.parent),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_folder_that_is_not_what_was_written_is_refused_each_time(run: RunFolder, what: str) -> None:
    folder = run.checkpoint_dir(5)
    assert verified(folder) == folder and damage(folder) is None
    DAMAGES[what](folder)
    for _ in range(2):
        with pytest.raises(UserError, match="the checkpoint cannot be used") as caught:
            verified(folder)
        assert caught.value.where == str(folder) and caught.value.remedy
    verified(run.checkpoint_dir(3))


def test_a_check_is_remembered_only_while_no_file_looks_changed(run: RunFolder) -> None:
    folder, weights = run.checkpoint_dir(5), run.checkpoint_dir(5) / "model.safetensors"
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    verified(folder)
    flipped(folder)
    os.utime(weights, (1, 1))  # a copy that keeps the times
    with pytest.raises(UserError, match=r"model\.safetensors is not what was written"):
        verified(folder)


def test_what_no_loader_reads_may_be_added_and_foreign_folders_have_no_seal(
    run: RunFolder, tmp_path: Path
) -> None:
    folder = run.checkpoint_dir(5)
    (folder / "README.md").write_text("# A card")
    (folder / ".DS_Store").write_bytes(b"0")
    assert verified(folder) == folder
    foreign = tmp_path / "model"
    foreign.mkdir()
    (foreign / "config.json").write_text("{}")
    assert verified(foreign) == foreign


def test_the_best_is_not_told_from_a_state_that_was_changed(run: RunFolder) -> None:
    state = run.checkpoint_dir(5) / "trainer_state" / "state.json"
    state.write_text(state.read_text().replace('"best_step": 3', '"best_step": 0'))
    with pytest.raises(UserError, match=r"state\.json is not what was written"):
        choose_checkpoint(run.path)
    assert choose_checkpoint(Path(f"{run.path}@3")).path == run.checkpoint_dir(3)
