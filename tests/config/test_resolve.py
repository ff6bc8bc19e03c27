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
    assert (config.grpo.kl_coef, config.grpo.target_kl, config.grpo.adaptive_kl) == (0.02, 0.1, True)
    assert config.optimization.learning_rate == 1e-5
    assert config.optimization.gradient_accumulation_steps == 4
    assert (config.training.max_epochs, config.training.save_frequency) == (3, 10)
    assert (config.rollout.num_envs, config.rollout.temperature) == (4, 0.7)
    assert (config.tools.timeout_s, config.tools.retry) == (20.0, 3)
    assert config.tools.allow_list == ("polygon", "slack")
    assert config.training.batch_size == 8
    assert config.grpo.minibatches == 4  # 8 prompts in minibatches of 2


def test_keys_without_effect_are_noted_with_their_place() -> None:
    notes = load_train_config(FILES).notes
    assert any("rollout.yaml:4: rollout.num_workers has no effect" in note for note in notes)
    assert any("rollout.yaml:6: rollout.max_episodes_per_update has no effect" in note for note in notes)
    assert any("algo_grpo.yaml:4: grpo.gamma has no effect" in note for note in notes)
    assert not any("return_token_logprobs" in note for note in notes)  # true asks for what happens anyway


@pytest.mark.parametrize(
    ("spelling", "path", "value"),
    [
        ("grpo.lambda=0.9", "grpo.lambda_gae", 0.9),
        ("training.learning_rate=3e-6", "optimization.learning_rate", 3e-6),
        ("training.gradient_accumulation_steps=2", "optimization.gradient_accumulation_steps", 2),
        ("rollout.tools.timeout=5", "tools.timeout_s", 5.0),
        ("tools.timeout=5", "tools.timeout_s", 5.0),
        ("tools.retry=1", "tools.retry", 1),
        ("rollout.tools.allow_list=[fmp]", "tools.allow_list", ("fmp",)),
        ("tools.cassette_stateless=[fmp]", "tools.read_only", ("fmp",)),
        ("lora.enabled=false", "finetune.mode", "full"),
        ("algorithm.name=GRPO", "algorithm", "grpo"),
        ("temperature=0.5", "rollout.temperature", 0.5),
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


def test_tools_cannot_be_switched_off() -> None:
    with pytest.raises(UserError, match=r"tools.enabled is false, but it can only be true"):
        load_train_config([], ["tools.enabled=false"])
