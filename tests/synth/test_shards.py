"""Datasets in shards: their files, one after the other, are one dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mcpagent.core.tasks import Task
from mcpagent.storage.datasets import read_tasks
from mcpagent.synth.templates.rules import share_of
from tests.running import mcpagent, refused
from tests.synth.running import write_config

pytestmark = pytest.mark.system

SMALL = Path(__file__).parents[1] / "cli" / "small_servers.py"
RULES = ("--train", "7", "--validation", "0", "--heldout", "3", "--seed", "4")
EXPLORED = ("--explore", "--servers", "mcp.json", "--train", "20", "--validation", "0", "--heldout", "5")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_config(tmp_path, "harbour", SMALL, "harbour", 40)
    return tmp_path


def made(home: Path, words: Sequence[str], shard: str) -> dict[str, list[Task]]:
    out = home / shard.replace("/", "-of-")
    done = mcpagent("gen-data", *words, "--shard", shard, "--out", str(out), "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    paths = json.loads(done.stdout)["paths"]
    return {split: list(read_tasks(Path(path))) for split, path in paths.items()}


@pytest.mark.parametrize("words", [RULES, EXPLORED], ids=["templates", "explored"])
def test_the_files_of_all_shards_are_one_dataset(home: Path, words: Sequence[str]) -> None:
    shards = [made(home, words, f"{number}/2") for number in (1, 2)]
    for split, asked in (("train", int(words[words.index("--train") + 1])), ("heldout", 0)):
        ids = [task.id for shard in shards for task in shard[split]]
        assert len(ids) == len(set(ids)) >= asked
        assert all(shard[split] for shard in shards)
    train, heldout = (
        {task.extra_info.get("about") or task.prompt[-1].content for shard in shards for task in shard[split]}
        for split in ("train", "heldout")
    )
    assert not train & heldout


def test_shares_add_up() -> None:
    for of in (1, 3, 8):
        shares = [share_of({"train": 100, "heldout": 5}, (number, of)) for number in range(1, of + 1)]
        assert sum(share["train"] for share in shares) == 100
        assert sum(share["heldout"] for share in shares) == 5
        assert max(share["train"] for share in shares) - min(share["train"] for share in shares) <= 1


@pytest.mark.parametrize("wrong", ["0/2", "3/2", "2", "a/b"])
def test_a_shard_that_there_is_not_is_refused(home: Path, wrong: str) -> None:
    text = refused(mcpagent("gen-data", *RULES, "--shard", wrong, "--out", "wrong", cwd=home))
    assert "is not I/N with 1 <= I <= N" in text and not (home / "wrong").exists()


def test_samples_of_a_model_are_not_made_in_shards(home: Path) -> None:
    text = refused(mcpagent("gen-data", "--llm", "--shard", "1/2", "--out", "wrong", cwd=home))
    assert "--shard is not for --llm" in text
