from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import DEFAULT_FILES, dump_config, load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.config.source import set_option
from mcpagent.errors import UserError

SHIPPED = sorted(resource_path("configs").glob("*.yaml"))


def message_of(files: Sequence[Path | str], overrides: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        load_train_config(files, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def write(folder: Path, text: str, name: str = "a.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_loads_and_says_how_to_run_it(path: Path) -> None:
    loaded = load_train_config([path])
    assert loaded.notes == ()
    first_line = path.read_text().splitlines()[0]
    assert first_line.startswith("# mcpagent ") and f"configs/{path.name}" in first_line
    # The command as it stands there: its files are found, go together, and this one has the last word.
    words = shlex.split(first_line)
    together = load_train_config(_values(words, "--config"), _values(words, "--set"))
    assert together.notes == ()
    own, chosen = f"{path.name}:", {text.partition("=")[0] for text in _values(words, "--set")}
    replaced = [key for key in loaded.sources.keys() - chosen if own not in together.sources[key]]
    assert replaced == []


def _values(words: list[str], option: str) -> list[str]:
    return [value for word, value in itertools.pairwise(words) if word == option]


def test_no_file_means_the_three_that_ship() -> None:
    assert load_train_config().config == load_train_config(list(DEFAULT_FILES)).config


def test_a_shipped_config_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_train_config(["configs/quickstart.yaml"]).config.model.name == "embedded"
    (tmp_path / "configs").mkdir()
    write(tmp_path / "configs", "model: {name: mine}", "quickstart.yaml")
    assert load_train_config(["configs/quickstart.yaml"]).config.model.name == "mine"


def test_later_files_and_then_options_win(tmp_path: Path) -> None:
    first = write(tmp_path, "rollout: {group_size: 4, num_envs: 3}\nlora:\n  target_modules: [a, b]\n")
    second = write(tmp_path, "rollout:\n  group_size: 6\nlora: {target_modules: all-linear}\n", "b.yaml")
    loaded = load_train_config([first, second], ["rollout.num_envs=9"])
    assert (loaded.config.rollout.group_size, loaded.config.rollout.num_envs) == (6, 9)
    assert loaded.config.lora.target_modules == "all-linear"
    assert loaded.sources == {
        "rollout.group_size": f"{second}:2",
        "lora.target_modules": f"{second}:3",
        "rollout.num_envs": "--set rollout.num_envs=9",
    }


def test_a_value_replaces_a_mapping_and_an_empty_section_replaces_nothing(tmp_path: Path) -> None:
    first = write(tmp_path, "algorithm: sft\nlora: {r: 4}\ntools: {isolation: {slack: episode}}\n")
    second = write(tmp_path, "algorithm: grpo\nlora:\nrollout: {tools: {}}\n", "b.yaml")
    config = load_train_config([first, second]).config
    assert (config.algorithm, config.lora.r) == ("grpo", 4)
    assert config.tools.per_server["slack"].isolation == "episode"
    cleared = load_train_config([first], ["tools.per_server={}"])
    assert cleared.config.tools.per_server == {}
    added = load_train_config([first], ["tools.isolation.fmp=shared"]).config.tools.per_server
    assert {name: section.isolation for name, section in added.items()} == {
        "slack": "episode",
        "fmp": "shared",
    }


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = "training: &same\n  learning_rate: 0.5\noptimization:\n  <<: *same\n  weight_decay: 0.1\n"
    file = write(tmp_path, text)
    optimization = load_train_config([file]).config.optimization
    assert (optimization.learning_rate, optimization.weight_decay) == (0.5, 0.1)


def test_a_refused_value_is_not_judged_by_its_default() -> None:
    # kl_coef falls back to 0.01, which would not go with reference none.
    message = message_of([], ["grpo.reference=none", "grpo.kl_coef=low"])
    assert message == "--set grpo.kl_coef=low: grpo.kl_coef is 'low', but it must be a valid number"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("rollout.group_szie=3", "did you mean rollout.group_size?"),
        ("rolout.group_size=3", "did you mean rollout?"),
        ("grpo.weight_decay=1", "did you mean optimization.weight_decay?"),
        ("tools.timout=3", "did you mean tools.timeout?"),
        ("xyzzy=3", "unknown key xyzzy"),
    ],
)
def test_an_unknown_key_names_the_near_match(written: str, meant: str) -> None:
    assert message_of([], [written]).endswith(meant)


def test_every_error_is_reported_at_once_with_its_place(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "rollout:\n  group_size: 1\n  top_p: 0.9\n  num_envs: many\ntraning:\n  x: 1\n  y: 2\n"
        "lora:\n  r: 0\ngrpo:\n  reference: none\n",
    )
    lines = message_of([file, tmp_path / "absent.yaml"], ["grpo.clip_ratio=true"]).splitlines()
    assert lines[0] == "the configuration has 8 errors:"
    assert f"  {tmp_path / 'absent.yaml'}: there is no such file" in lines
    assert f"  {file}:6: unknown key traning; did you mean training?" in lines
    reasons = {
        f"  {file}:2: rollout.group_size is 1, but GRPO compares attempts within a group; use 2 or more",
        f"  {file}:3: rollout.top_p is 0.9, but ",
        f"  {file}:4: rollout.num_envs is 'many', but it must be a valid integer",
        f"  {file}:9: lora.r is 0, but it must be greater than or equal to 1",
        f"  {file}:11: grpo.kl_coef is 0.01, but grpo.reference is none",
        "  --set grpo.clip_ratio=true: grpo.clip_ratio is true, but it must be a valid number",
    }
    for reason in reasons:
        assert sum(line.startswith(reason) for line in lines) == 1, reason


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("rollout:\n  a: [1\n", 3, "is not valid YAML"),
        ("- 1\n", 1, "a configuration is a mapping"),
        ("lora:\n  r: 1\n  r: 2\n", 3, "r stands here a second time (first at line 2)"),
        ("seed: 1\nseed: !!python/object:os.system 1\n", 2, ""),
        ("grpo: 3\n", 1, "grpo is a section with keys such as grpo."),
        ("seed: {a: 1}\n", 1, "seed takes a value, not keys such as a"),
        ("? [a, b]\n: 1\n", 1, "a key must be a plain word"),
        ("a: &x\n  b: *x\n", 1, "is nested too deeply"),
    ],
)
def test_a_broken_file_is_reported_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    file = write(tmp_path, text)
    message = message_of([file], [])
    assert message.startswith(f"{file}:{line}: ") and reason in message


def test_bytes_that_are_no_text_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"seed: \xff\n")
    assert message_of([file], []).endswith("is not UTF-8 text (byte 6)")


def test_an_override_without_a_value_sign_is_refused() -> None:
    assert "write it as key=value" in message_of([], ["rollout.group_size"])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["rollout.temperature=0"], "rollout.temperature is 0, but"),
        (["grpo.target_kl=0.1", "grpo.kl_coef=0"], "grpo.target_kl multiplies it"),
        (["grpo.clip_ratio_high=0.1"], "grpo.clip_ratio_high is 0.1, but grpo.clip_ratio is 0.2"),
        (
            ["grpo.kl_estimator=k1", "grpo.reference=none", "grpo.kl_coef=0"],
            "grpo.kl_estimator is k1, which is taken off the reward, but grpo.reference is none",
        ),
        (
            ["grpo.loss=dr_grpo", "grpo.normalize_advantages=true"],
            "grpo.normalize_advantages is true, but grpo.loss dr_grpo",
        ),
        (
            ["grpo.advantage=rloo", "grpo.normalize_advantages=batch"],
            "grpo.normalize_advantages is batch, but grpo.advantage is rloo",
        ),
        (["grpo.minibatches=3"], "grpo.minibatches is 3, but the 16 prompts of a step"),
        (["optimization.optimizer=muon"], "optimization.optimizer is muon, but"),
        (["rollout.max_new_tokens=4096"], "rollout.max_new_tokens is 4096, but"),
        (["device=cpu", "model.dtype=fp16"], "model.dtype is float16, but"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], reason: str) -> None:
    assert reason in message_of([], overrides)


def test_supervised_training_may_use_any_sampling() -> None:
    config = load_train_config([], ["algorithm=sft", "rollout.top_p=0.9", "rollout.group_size=1"]).config
    assert config.algorithm == "sft"


def test_evaluation_may_sample_in_ways_that_training_may_not() -> None:
    overrides = ["rollout.temperature=0", "rollout.top_p=0.8", "rollout.group_size=1"]
    loaded = load_train_config([], overrides, for_training=False)
    assert (loaded.config.rollout.temperature, loaded.config.rollout.top_p) == (0.0, 0.8)
    with pytest.raises(UserError, match="leaves no room for a prompt"):
        load_train_config([], ["rollout.max_new_tokens=9999"], for_training=False)


def test_the_steps_of_a_curriculum_are_among_the_steps_that_were_asked_for() -> None:
    supervised = ["algorithm=sft", "sft.curriculum=a.b:c", "sft.curriculum_steps=5"]
    config = load_train_config([], [*supervised, "training.max_steps=20"]).config
    assert config.total_steps(n_tasks=1000) == 20
    # One epoch of 32 tasks is two batches of 16, and an epoch sees every demonstration.
    epoch = load_train_config([], [*supervised, "training.max_epochs=1"]).config
    assert epoch.total_steps(n_tasks=32) == 5 + 2
    with pytest.raises(UserError, match="no step is left for a demonstration"):
        load_train_config([], [*supervised, "training.max_steps=5"])


@pytest.mark.parametrize("name", ["shop", "MCP SQLite Server", "a.b", "it's", "x=y", " edge", "{a: 1}", "é"])
def test_an_option_that_is_advised_sets_what_it_says_in_a_shell(name: str) -> None:
    for key in (("isolation", name), ("per_server", name, "isolation")):
        option, text = shlex.split(set_option("tools", *key, value="episode"))
        config = load_train_config([], [text], for_training=False).config
        assert option == "--set" and config.tools.per_server[name].isolation == "episode"
    _, text = shlex.split(set_option("tools", "per_server", name, "allow_writes", value=True))
    assert load_train_config([], [text]).config.tools.per_server[name].allow_writes


def test_settings_without_effect_are_noted() -> None:
    notes = load_train_config([], ["finetune.mode=full", "lora.r=4", "grpo.gamma=0.9"]).notes
    assert len(notes) == 2
    assert any("--set grpo.gamma=0.9: grpo.gamma has no effect: grpo.advantage is group" in n for n in notes)
    assert "--set lora.r=4: lora.r has no effect: finetune.mode is full" in notes


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ([], 4),  # 50 prompts in batches of 16, seen once
        (["training.max_epochs=2"], 8),
        (["training.max_epochs=2", "training.steps_per_epoch=5"], 10),
        (["training.max_steps=30"], 30),
    ],
)
def test_the_length_of_a_run(overrides: list[str], steps: int) -> None:
    assert load_train_config([], overrides).config.total_steps(n_tasks=50) == steps


values = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**63),
        "name": st.text(min_size=1).filter(lambda text: text.isprintable() and "\n" not in text),
        "optimization.learning_rate": st.floats(1e-12, 1.0),
        "optimization.gradient_clip": st.none() | st.floats(1e-3, 1e9),
        "rollout.group_size": st.integers(2, 1000),
        "tools.allow_list": st.none() | st.lists(st.text(), max_size=3).map(tuple),
        "tools.per_server": st.dictionaries(st.text(min_size=1), st.just({"max_in_flight": 2}), max_size=3),
    },
)


@given(values)
@example({"name": "1e5", "tools.per_server": {"\x85": {"max_in_flight": 2}, "on": {}}})
@example({"name": "2025-01-01", "tools.allow_list": ("null", "08", "é", "")})
def test_a_dumped_config_loads_as_an_equal_one(
    tmp_path_factory: pytest.TempPathFactory, given_values: dict[str, object]
) -> None:
    tree: dict[str, object] = {}
    for key, value in given_values.items():
        section, _, name = key.rpartition(".")
        branch = tree.setdefault(section, {}) if section else tree
        assert isinstance(branch, dict)
        branch[name] = value
    config = TrainConfig.model_validate(tree)
    file = tmp_path_factory.mktemp("dump") / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert load_train_config([file]).config == config


@pytest.mark.parametrize(
    "overrides", [[], ["algorithm=sft", "training.max_steps=7"], ["rollout.minibatch_size=4"]]
)
def test_the_resolved_config_of_a_run_loads_as_itself(tmp_path: Path, overrides: list[str]) -> None:
    config = load_train_config([], overrides).config
    file = write(tmp_path, dump_config(config))
    assert load_train_config([file]).config == config


def test_the_algorithm_ppo_is_the_preset_below_what_is_given(tmp_path: Path) -> None:
    files = ["configs/model.yaml", "configs/rollout.yaml", "configs/ppo.yaml"]
    preset = load_train_config(files).config
    assert (preset.algorithm, preset.grpo.advantage, preset.rollout.group_size) == ("grpo", "gae", 4)
    assert load_train_config([], ["algorithm=ppo"]).config == preset
    mine = write(tmp_path, "algorithm: PPO\ngrpo: {lambda_gae: 0.9}\ntraining: {batch_size: 8}\n")
    loaded = load_train_config([mine], ["grpo.gamma=0.5"])
    grpo = loaded.config.grpo
    assert (grpo.gae_gamma, grpo.gae_lambda, grpo.value_learning_rate) == (0.5, 0.9, 1e-3)
    assert loaded.config.training.batch_size == 8
    assert loaded.sources["grpo.lambda_gae"] == f"{mine}:2"
    again = write(tmp_path, dump_config(loaded.config), "again.yaml")
    assert (
        load_train_config([again]).config
        == load_train_config([again], ["algorithm=ppo"]).config
        == loaded.config
    )


def test_an_advantage_that_is_not_that_of_ppo_is_an_error() -> None:
    message = message_of(DEFAULT_FILES, ["algorithm=ppo"])
    assert (
        "algo_grpo.yaml:8: grpo.advantage is 'group', but the algorithm is ppo (--set algorithm=ppo)"
        in message
    )
    assert message_of([], ["algorithm=dpo"]).endswith("algorithm is 'dpo', but it must be grpo, ppo or sft")


def test_a_network_of_random_weights_is_trained_whole() -> None:
    asked = ["algorithm=sft", "model.name=embedded"]
    assert "finetune.mode is lora, but model.name is embedded" in message_of([], asked)
    assert load_train_config([], [*asked, "finetune.mode=full"]).config.finetune.mode == "full"


@pytest.mark.parametrize(
    ("options", "scale"),
    [([], "group"), (["grpo.loss=dr_grpo"], "none"), (["grpo.normalize_advantages=batch"], "batch")],
)
def test_advantages_are_divided_by_a_standard_deviation_unless_the_loss_leaves_it_out(
    options: list[str], scale: str
) -> None:
    assert load_train_config([], options).config.grpo.advantage_scale == scale


def test_a_run_of_another_version_loads_with_a_note_on_the_keys_that_are_gone(tmp_path: Path) -> None:
    stored = write(tmp_path, "seed: 3\nhealth:\n  warn: {kl: 2.0}\n  kl: 5.0\nrollout:\n  max_staleness: 0\n")
    loaded = load_train_config(inherited=stored)
    assert (loaded.config.seed, loaded.config.health.kl) == (3, 5.0)
    assert (
        f"{stored} is of another version: 2 settings are left out: health.warn, rollout.max_staleness"
        in loaded.notes
    )
    with pytest.raises(UserError, match=r"unknown key health\.warn"):
        load_train_config([stored])
