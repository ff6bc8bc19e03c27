"""A dataset folder remembers its servers, and every command that takes the dataset uses them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.config.dataset_servers import read_dataset_servers
from mcpagent.storage.datasets import read_tasks
from tests.cli.specs import spec_of
from tests.running import mcpagent, refused

SERVERS = str(Path(__file__).with_name("small_servers.py"))
SECRET = "harbour-pass-83921"
KEY = {"HARBOUR_KEY": SECRET}


def write_mcp_json(path: Path, *, ships: int = 60) -> Path:
    entry = {
        "command": sys.executable,
        "args": [SERVERS, "harbour", str(ships)],
        "env": {"HARBOUR_KEY": "${HARBOUR_KEY}"},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": {"harbour": entry}}))
    return path


@pytest.fixture(scope="module")
def harbour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project: mcp.json, and data made from its server."""
    home = tmp_path_factory.mktemp("harbour")
    write_mcp_json(home / "mcp.json")
    counts = ("--train", "3", "--validation", "1", "--heldout", "2")
    made = mcpagent("gen-data", "--servers", "mcp.json", *counts, "--out", "data/h", cwd=home, env=KEY)
    assert made.returncode == 0, made.stderr
    return home


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of all five built-in servers, python among them."""
    out = tmp_path_factory.mktemp("full")
    counts = ("--train", "8", "--validation", "1", "--heldout", "1")
    made = mcpagent("gen-data", "--templates", "full", *counts, "--out", out)
    assert made.returncode == 0, made.stderr
    assert any(
        "python.create_data_pipeline" in (task.offered_tools or ())
        for task in read_tasks(out / "train.jsonl")
    )
    return out


def used_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says which servers were taken, and from where."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("servers: ")]
    assert "servers.yaml" in line
    return line


@pytest.mark.slow
def test_the_full_templates_are_checked_and_played_without_a_word_about_servers(
    full: Path, tmp_path: Path
) -> None:
    data = full / "train.jsonl"
    for command in (
        ("data", "validate", data, "--execute"),
        ("rollout", "--policy", "gold", "--data", data, "--out", tmp_path / "gold.jsonl"),
        ("env", "check", "--data", data),
        ("train", "--set", f"data.train={data}", "--dry-run"),
    ):
        done = mcpagent(*command)
        assert done.returncode == 0, done.stderr
        assert "python" in used_line(done)


def found_by(harbour: Path, *command: str | Path) -> None:
    done = mcpagent(*command, env=KEY)
    assert done.returncode == 0, done.stderr
    assert str(harbour / "mcp.json") in used_line(done)


def test_a_users_servers_are_found_where_tasks_are_played_and_validated(
    harbour: Path, tmp_path: Path
) -> None:
    data = harbour / "data/h/train.jsonl"
    found_by(harbour, "rollout", "--policy", "gold", "--data", data, "--out", tmp_path / "gold.jsonl")
    found_by(harbour, "data", "validate", data, "--execute")


@pytest.mark.slow
def test_a_users_servers_are_found_by_every_command(
    harbour: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    data = harbour / "data/h/train.jsonl"
    short = ("--set", "rollout.max_new_tokens=4")
    found_by(harbour, "env", "check", "--data", data)
    found_by(harbour, "tools", "call", "harbour.list_ships", "--data", data)
    found_by(harbour, "tools", "bench", "harbour.list_ships", "--calls", "3", "--data", data)
    found_by(harbour, "train", "--set", f"data.train={data}", "--dry-run")
    found_by(harbour, "eval", "model", tiny_checkpoint, "--data", data, *short)
    run = tmp_path / "run"
    settings = (
        *(f"model.name={tiny_checkpoint}", f"data.train={data}", f"output_dir={run}", "training.max_steps=1"),
        *("training.batch_size=1", "rollout.group_size=2", "rollout.max_new_tokens=4", "finetune.mode=full"),
        "training.eval_every=0",
    )
    found_by(harbour, "train", *(part for setting in settings for part in ("--set", setting)))
    (run,) = (folder for folder in run.iterdir() if folder.is_dir())
    trained = mcpagent("eval", "checkpoint", run, "--data", data, env=KEY)
    assert trained.returncode == 0, trained.stderr  # with the servers of the run, which are those of the data
    on_others = mcpagent("eval", "checkpoint", run, "--data", "data/samples/train.jsonl", *short)
    assert on_others.returncode == 0, on_others.stderr
    assert "polygon" in used_line(on_others)


def test_no_value_of_a_variable_and_no_path_of_this_machine_is_written_beside_the_data(harbour: Path) -> None:
    written = [path for path in harbour.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET in path.read_text()]
    assert str(harbour) not in (harbour / "data/h/servers.yaml").read_text()


def test_servers_that_are_named_win(harbour: Path, tmp_path: Path) -> None:
    other = write_mcp_json(tmp_path / "other.json", ships=2)
    data = harbour / "data/h/heldout.jsonl"
    for explicit in (("--servers", other), ("--set", f"tools.servers={other}")):
        checked = mcpagent("data", "validate", data, "--execute", *explicit, env=KEY)
        assert checked.returncode == 2  # two ships are not the harbour that the tasks are about
        assert "servers: " not in checked.stderr


def test_what_is_made_of_a_dataset_carries_its_servers_on(harbour: Path, tmp_path: Path) -> None:
    data = harbour / "data/h/train.jsonl"
    parts = ("--group-by", "plan", "--validation", "0.3", "--heldout", "0.3")
    for command, made in (
        (("data", "split", data, "--out", tmp_path / "split", *parts), tmp_path / "split"),
        (("data", "dedupe", data, "--out", tmp_path / "thin/a.jsonl"), tmp_path / "thin"),
        (
            ("data", "validate", data, "--no-catalog", "--out", tmp_path / "good/a.jsonl.zst"),
            tmp_path / "good",
        ),
    ):
        done = mcpagent(*command, env=KEY)
        assert done.returncode == 0, done.stderr
        carried = read_dataset_servers(made)
        assert carried is not None and carried.servers == harbour / "mcp.json"


def test_convert_remembers_the_servers_that_it_checked_against(tmp_path: Path) -> None:
    servers = write_mcp_json(tmp_path / "mcp.json")
    (tmp_path / "spec.json").write_text(json.dumps(spec_of("harbour", "list_ships", {})))
    out = tmp_path / "made" / "train.jsonl"
    done = mcpagent("convert", tmp_path / "spec.json", "--servers", servers, "--out", out, env=KEY)
    assert done.returncode == 0, done.stderr
    remembered = read_dataset_servers(out)
    assert remembered is not None and remembered.servers == servers


def test_other_servers_are_not_written_over_those_of_a_folder(harbour: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(harbour / "data/h", folder)
    remembered = (folder / "servers.yaml").read_bytes()
    (folder / "train.jsonl").rename(folder / "mine.jsonl")
    for split in ("validation", "heldout"):
        (folder / f"{split}.jsonl").unlink()
    done = mcpagent("gen-data", "--train", "2", "--validation", "0", "--heldout", "0", "--out", folder)
    assert "servers.yaml" in refused(done) and "--overwrite" in done.stderr
    assert (folder / "servers.yaml").read_bytes() == remembered
    assert sorted(path.name for path in folder.iterdir()) == ["mine.jsonl", "servers.yaml"]


def test_servers_that_are_gone_are_one_error_that_says_what_to_type(harbour: Path, tmp_path: Path) -> None:
    shutil.copytree(harbour, tmp_path / "moved")
    home = tmp_path / "moved"
    other = (home / "mcp.json").rename(home / "renamed.json")
    command = ("data", "validate", home / "data/h/train.jsonl")
    said = refused(mcpagent(*command, env=KEY))
    assert "mcp.json" in said and "there is no such file" in said and "--servers" in said
    assert mcpagent(*command, "--servers", other, env=KEY).returncode == 0


def downloaded(folder: Path, *, proof: Path) -> Path:
    """Somebody's dataset, whose servers.yaml names a program that leaves `proof`."""
    folder.mkdir()
    shutil.copy("data/samples/train.jsonl", folder / "train.jsonl")
    code = f"open({str(proof)!r}, 'w'); import runpy; runpy.run_path({SERVERS!r}, run_name='__main__')"
    evil = {"command": sys.executable, "args": ["-c", code, "harbour", "2"]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"fmp": evil}}))
    (folder / "servers.yaml").write_text("tools:\n  servers: mcp.json\n")
    return folder / "train.jsonl"


def test_programs_that_came_with_a_dataset_are_not_started_before_a_person_names_them(
    tmp_path: Path,
) -> None:
    proof = tmp_path / "was-started"
    data = downloaded(tmp_path / "foreign", proof=proof)
    for command in (("data", "validate", data), ("tools", "list", "--data", data)):
        said = refused(mcpagent(*command))
        assert "never used on this machine" in said and "--servers" in said
    mine = tmp_path / "mine" / "train.jsonl"
    assert mcpagent("data", "validate", data, "--no-catalog", "--out", mine).returncode == 0
    refused(mcpagent("tools", "list", "--data", tmp_path / "mine"))
    assert not proof.exists()
    mcpagent("tools", "list", "--servers", data.with_name("mcp.json"))
    assert proof.exists()  # named once, on purpose
    assert "never used" not in mcpagent("tools", "list", "--data", data).stderr


@pytest.mark.slow
def test_no_command_starts_programs_that_came_with_a_dataset(tmp_path: Path) -> None:
    proof = tmp_path / "was-started"
    data = downloaded(tmp_path / "foreign", proof=proof)
    for command in (
        ("env", "check", "--data", data),
        ("rollout", "--policy", "gold", "--data", data, "--out", tmp_path / "x.jsonl"),
        ("data", "validate", data, "--execute"),
        ("train", "--set", f"data.train={data}"),
        ("train", "--set", f"data.train={data}", "--dry-run"),
        ("eval", "model", "openai:x", "--data", data),
    ):
        assert "never used on this machine" in refused(mcpagent(*command))
    assert not proof.exists()
