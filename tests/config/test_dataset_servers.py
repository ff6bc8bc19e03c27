"""What a dataset folder remembers of its servers, and what wins over it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mcpagent.config.dataset_servers import FILE_NAME, DatasetServers, read_dataset_servers
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.errors import UserError


def mcp_json(path: Path, **env: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": {"shop": {"command": "shop", "env": env}}}))
    return path


def remember(folder: Path, tools: ToolsConfig) -> DatasetServers:
    folder.mkdir(parents=True, exist_ok=True)
    remembered = DatasetServers.of(folder, tools)
    (folder / FILE_NAME).write_text(remembered.as_yaml())
    return remembered


def of_dataset(folder: Path, *overrides: str, files: tuple[Path, ...] = ()) -> ToolsConfig:
    remembered = read_dataset_servers(folder / "train.jsonl")
    return load_train_config(files, overrides, for_training=False, dataset=remembered).config.tools


def test_what_is_remembered_is_what_is_read(tmp_path: Path) -> None:
    used = ToolsConfig(
        servers=str(mcp_json(tmp_path / "mcp.json")),
        per_server={
            "shop": ServerSection(isolation="episode", calls_per_minute=30.0, safe_to_retry=("look",))
        },
        allow_list=("shop",),
        read_only=("shop.look",),
        timeout_s=7.0,
        result_limit_chars=500,
    )
    written = remember(tmp_path / "data", used)
    read = read_dataset_servers(tmp_path / "data" / "train.jsonl")
    assert read == written
    assert of_dataset(tmp_path / "data") == used


def test_paths_of_settings_are_relative_to_the_folder_that_keeps_them(tmp_path: Path) -> None:
    servers = mcp_json(tmp_path / "mcp.json")
    workspace = ServerSection(workspace=str(tmp_path / "files"))
    made = remember(tmp_path / "data", ToolsConfig(servers=str(servers), per_server={"shop": workspace}))
    assert str(tmp_path) not in made.as_yaml()
    (tmp_path / "data").rename(tmp_path / "moved")
    read = read_dataset_servers(tmp_path / "moved")
    assert read is not None and read.settings == made.settings and read.servers == servers


def test_the_built_in_servers_are_remembered_by_name_and_tool_set(tmp_path: Path) -> None:
    used = ToolsConfig(builtin=("python", "slack"), limited=False)
    remember(tmp_path, used)
    assert of_dataset(tmp_path) == used


def test_a_cassette_is_a_choice_of_each_command(tmp_path: Path) -> None:
    remember(tmp_path, ToolsConfig(cassette="tape", cassette_mode="strict"))
    assert of_dataset(tmp_path).cassette is None


def test_the_file_names_an_mcp_json_and_repeats_nothing_of_it(tmp_path: Path) -> None:
    servers = mcp_json(tmp_path / "mcp.json", KEY="${SHOP_KEY}", PLAIN="in-the-open-1234")
    text = remember(tmp_path / "data", ToolsConfig(servers=str(servers))).as_yaml()
    assert "../mcp.json" in text
    assert "in-the-open" not in text and "SHOP_KEY" not in text


def test_an_option_or_a_config_of_the_user_wins_over_what_is_remembered(tmp_path: Path) -> None:
    remember(tmp_path, ToolsConfig(builtin=("python",), limited=False, timeout_s=7.0))
    mine = tmp_path / "mine.yaml"
    mine.write_text("tools:\n  builtin: [fmp]\n")
    assert of_dataset(tmp_path, "tools.limited=true").limited is True
    chosen = of_dataset(tmp_path, files=(mine,))
    assert (chosen.builtin, chosen.limited, chosen.timeout_s) == (("fmp",), False, 7.0)


def test_a_preset_that_only_shows_the_defaults_gives_way(tmp_path: Path) -> None:
    remember(tmp_path, ToolsConfig(builtin=("python",), limited=False))
    presets = (Path("configs/model.yaml"), Path("configs/rollout.yaml"))
    assert of_dataset(tmp_path, files=presets).builtin == ("python",)
    assert of_dataset(tmp_path, files=(Path("configs/quickstart.yaml"),)).builtin == ("python",)


def test_nothing_of_a_runs_servers_stays_beside_those_of_another_dataset(tmp_path: Path) -> None:
    run = tmp_path / "config.yaml"
    run.write_text("tools:\n  servers: old.json\n  isolation: {old: episode}\n  timeout_s: 9.0\n")
    remember(tmp_path / "data", ToolsConfig(builtin=("python",)))
    remembered = read_dataset_servers(tmp_path / "data")
    tools = load_train_config(for_training=False, inherited=run, dataset=remembered).config.tools
    assert tools == ToolsConfig(builtin=("python",), timeout_s=9.0)


def test_servers_that_are_named_keep_how_those_of_the_same_name_are_run(tmp_path: Path) -> None:
    used = ToolsConfig(
        servers=str(mcp_json(tmp_path / "mcp.json")),
        per_server=dict.fromkeys(("shop", "mill"), ServerSection(isolation="episode")),
        read_only=("shop.look", "mill"),
        retry=1,
    )
    kept = remember(tmp_path / "data", used).for_servers({"shop", "inn"}, are_builtin=False)
    other = f"tools.servers={tmp_path / 'other.json'}"
    tools = load_train_config((), [other], for_training=False, dataset=kept).config.tools
    assert tools == ToolsConfig(
        servers=str(tmp_path / "other.json"),
        per_server={"shop": ServerSection(isolation="episode")},
        read_only=("shop.look",),
        retry=1,
    )


def test_a_folder_finds_its_servers_where_both_moved_and_where_it_moved_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    servers = mcp_json(home / "mcp.json")
    remember(home / "data", ToolsConfig(servers=str(servers)))
    shutil.copytree(home, tmp_path / "both")
    shutil.copytree(home / "data", tmp_path / "far" / "away" / "data")
    mcp_json(tmp_path / "far" / "away" / "mcp.json", OTHER="one")  # where the relative path now leads
    same = shutil.copy(servers, tmp_path / "far" / "mcp.json")
    found = {place: read_dataset_servers(tmp_path / place / "data") for place in ("both", "far/away")}
    assert found["both"] and found["both"].servers == tmp_path / "both" / "mcp.json"
    assert found["far/away"] and found["far/away"].servers == Path(same)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tools: {servers: [", "is not valid YAML"),
        ("tools: {sevrers: x.json}", "unknown key tools.sevrers"),
        ("model: {name: evil}", "it takes tools and rollout"),
        ("- 1", "a configuration is a mapping"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(UserError) as caught:
        read_dataset_servers(tmp_path)
    assert said in caught.value.message
    assert caught.value.where is not None and FILE_NAME in caught.value.where
