"""Environment variables that users of this family of tools set: below every key that a person wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError

VARIABLES = ("DEVICE_TYPE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_MODE")
TRACKED = "tracking.backends=[wandb, weave]"


@pytest.fixture(autouse=True)
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_each_variable_stands_for_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DEVICE_TYPE", "CPU"), ("WANDB_PROJECT", "mine"), ("WANDB_MODE", "dryrun")):
        monkeypatch.setenv(name, value)
    loaded = load_train_config([], [TRACKED])
    tracking = loaded.config.tracking
    assert loaded.config.device == "cpu"
    assert (tracking.project, tracking.mode) == ("mine", "offline")
    assert "WANDB_PROJECT (environment): tracking.project is mine" in loaded.notes


def test_a_file_env_counts_and_the_real_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("WANDB_PROJECT=from-file\nWANDB_MODE=online\n")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracking = load_train_config([], [TRACKED]).config.tracking
    assert (tracking.project, tracking.mode) == ("from-file", "offline")


@pytest.mark.parametrize("is_file", [True, False])
def test_a_key_of_the_configuration_wins(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVICE_TYPE", "cuda")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    own = tmp_path / "own.yaml"
    own.write_text("device: cpu\ntracking: {project: ours, backends: [wandb]}\n")
    options = [] if is_file else ["device=cpu", "tracking.project=ours", "tracking.backends=[wandb]"]
    loaded = load_train_config([own] if is_file else [], options)
    assert (loaded.config.device, loaded.config.tracking.project) == ("cpu", "ours")
    assert not any("environment" in note for note in loaded.notes)


def test_variables_of_trackers_count_only_where_a_tracker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert load_train_config().config.tracking.project == "mcpagent"
    with pytest.raises(UserError, match=r"WANDB_MODE \(environment\): tracking.mode is 'disabled'.*offline"):
        load_train_config([], [TRACKED])


def test_a_device_that_does_not_exist_is_refused_by_the_name_of_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEVICE_TYPE", "gpu")
    with pytest.raises(UserError, match=r"DEVICE_TYPE \(environment\): device is 'gpu'"):
        load_train_config()


def test_a_resumed_run_keeps_what_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = tmp_path / "config.yaml"
    began.write_text("device: auto\n")
    monkeypatch.setenv("DEVICE_TYPE", "cpu")
    assert load_train_config(inherited=began).config.device == "auto"
