"""Files written in the form that users of this family of tools know load unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError

FOLDER = Path(__file__).parent / "familiar"
FILES = [FOLDER / "model.yaml", FOLDER / "algo_grpo.yaml", FOLDER / "rollout.yaml"]


def test_every_familiar_key_reaches_its_meaning() -> None:
    config = load_train_config(FILES).config
    assert config.model.name == "Qwen/Qwen2.5-0.5B-Instruct"
    assert config.model.trust_remote_code is True
    assert config.finetune.mode == "lora"
    assert (config.lora.r, config.lora.alpha, config.lora.dropout) == (16, 32.0, 0.05)
    assert config.lora.target_modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert config.vllm.gpu_memory_utilization == 0.8
    assert (config.grpo.gamma, config.grpo.lambda_gae) == (0.99, 0.95)
    assert (config.grpo.kl_coef, config.grpo.target_kl) == (0.02, 0.1)
    assert config.optimization.learning_rate == 1e-5
    assert (config.training.max_epochs, config.training.save_frequency) == (3, 10)
    assert config.training.max_steps == 3 * 50
    assert config.rollout.max_context_tokens == 4096
    assert (config.rollout.num_envs, config.rollout.temperature) == (4, 0.7)
    assert (config.tools.timeout_s, config.tools.retry) == (20.0, 3)
    assert config.tools.allow_list == ("polygon", "slack")
    assert config.training.batch_size == 32  # 8 prompts, accumulated over 4 batches
    assert config.grpo.minibatches == 4  # 8 prompts in minibatches of 2


def test_keys_without_effect_are_noted_with_their_place() -> None:
    notes = load_train_config(FILES).notes
    assert any("rollout.yaml:4: rollout.num_workers has no effect" in note for note in notes)
    assert any("rollout.yaml:6: rollout.max_episodes_per_update has no effect" in note for note in notes)
    assert any("algo_grpo.yaml:4: grpo.gamma has no effect" in note for note in notes)


@pytest.mark.parametrize(
    ("spelling", "path", "value"),
    [
        ("grpo.lambda=0.9", "grpo.lambda_gae", 0.9),
        ("training.learning_rate=3e-6", "optimization.learning_rate", 3e-6),
        ("training.gradient_accumulation_steps=2", "training.batch_size", 32),  # of the default 16
        ("optimization.gradient_accumulation_steps=3", "training.batch_size", 48),
        ("training.steps_per_epoch=5", "training.max_steps", 5),  # of the default one epoch
        ("vllm.max_model_len=2048", "rollout.max_context_tokens", 2048),
        ("vllm.max_model_len=9000", "rollout.max_context_tokens", 4096),  # of configs/rollout.yaml
        ("rollout.tools.timeout=5", "tools.timeout_s", 5.0),
        ("tools.timeout=5", "tools.timeout_s", 5.0),
        ("tools.retry=1", "tools.retry", 1),
        ("rollout.tools.allow_list=[fmp]", "tools.allow_list", ("fmp",)),
        ("lora.enabled=false", "finetune.mode", "full"),
        ("algorithm=GRPO", "algorithm", "grpo"),
        ("temperature=0.5", "rollout.temperature", 0.5),
        ("group_size=4", "rollout.group_size", 4),
        ("model.dtype=bf16", "model.dtype", "bfloat16"),
        ("rollout.minibatch_size=4", "grpo.minibatches", 4),  # of the default 16 prompts
    ],
)
def test_a_familiar_spelling_sets_the_resolved_setting(spelling: str, path: str, value: object) -> None:
    found: object = load_train_config([], [spelling]).config
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_two_spellings_that_differ_are_an_error_that_names_both_places(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("optimization:\n  learning_rate: 1e-5\n")
    second.write_text("\ntraining:\n  learning_rate: 2e-5\n")
    with pytest.raises(UserError) as caught:
        load_train_config([first, second])
    message = str(caught.value)
    assert f"{second}:3: training.learning_rate is 2e-05" in message
    assert f"optimization.learning_rate ({first}:2) is 1e-05" in message


def test_tools_in_both_places_must_agree(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("tools: {timeout: 5}\nrollout:\n  tools: {timeout_seconds: 6}\n")
    with pytest.raises(UserError, match=r"a.yaml:3: rollout.tools.timeout_seconds is 6, but tools.timeout"):
        load_train_config([file])
    file.write_text("tools: {timeout: 5}\nrollout:\n  tools: {timeout_seconds: 5.0}\n")
    assert load_train_config([file]).config.tools.timeout_s == 5.0


def test_an_option_replaces_a_file_in_any_spelling(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("optimization:\n  learning_rate: 1e-5\n")
    loaded = load_train_config([file], ["training.learning_rate=2e-5"])
    assert loaded.config.optimization.learning_rate == 2e-5
    assert loaded.sources["optimization.learning_rate"] == "--set training.learning_rate=2e-5"


def test_minibatch_size_must_divide_the_batch() -> None:
    with pytest.raises(UserError, match=r"minibatch_size is 5, but training.batch_size 16 is not a multiple"):
        load_train_config([], ["rollout.minibatch_size=5"])


def test_the_number_of_steps_wins_over_those_of_an_epoch() -> None:
    config = load_train_config([], ["training.max_steps=3", "training.steps_per_epoch=50"]).config
    assert config.training.max_steps == 3


def test_a_target_of_the_kl_counts_unless_it_is_switched_off() -> None:
    assert load_train_config([], ["grpo.target_kl=0.1"]).config.grpo.target_kl == 0.1
    off = load_train_config([], ["grpo.target_kl=0.1", "grpo.adaptive_kl=false"])
    assert off.config.grpo.target_kl is None
    assert "--set grpo.target_kl=0.1: grpo.target_kl has no effect: grpo.adaptive_kl is false" in off.notes


def test_the_context_of_vllm_is_no_limit_of_another_backend() -> None:
    loaded = load_train_config([], ["rollout.backend=hf", "vllm.max_model_len=2048"])
    assert loaded.config.rollout.max_context_tokens == 4096
    assert any("vllm.max_model_len has no effect: rollout.backend is hf" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("training.steps_per_epoch=0", "training.steps_per_epoch is 0, but it must be a whole number"),
        ("optimization.gradient_accumulation_steps=two", "it must be a whole number, 1 or more"),
        ("vllm.max_model_len=true", "vllm.max_model_len is true, but it must be a whole number"),
        ("grpo.adaptive_kl=1", "grpo.adaptive_kl is 1, but it must be true or false"),
        ("grpo.adaptive_kl=true", "grpo.adaptive_kl is true, but grpo.target_kl is not set"),
    ],
)
def test_a_familiar_value_that_means_nothing_is_refused(spelling: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_train_config([], [spelling])


def test_a_run_from_before_is_read_as_it_was(tmp_path: Path) -> None:
    """Every run wrote all of its settings, also those that are familiar spellings now."""
    kept = tmp_path / "config.yaml"
    kept.write_text(
        "grpo: {target_kl: 0.1, adaptive_kl: false}\n"
        "optimization: {gradient_accumulation_steps: 2}\n"
        "training: {batch_size: 8, max_epochs: 2, steps_per_epoch: null, max_steps: null}\n"
        "rollout: {backend: hf, max_context_tokens: null}\n"
    )
    loaded = load_train_config(inherited=kept)
    config = loaded.config
    assert (config.training.batch_size, config.training.max_steps) == (16, None)
    assert (config.grpo.target_kl, config.rollout.max_context_tokens) == (None, None)
    assert not any("left out" in note for note in loaded.notes)
