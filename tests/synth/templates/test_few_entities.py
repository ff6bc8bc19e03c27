"""Small servers and small files: each split that was asked for has a task where there is one, and no file is
empty."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError
from mcpagent.run.episodes import evaluated_file, open_tasks
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.synth.templates.pools import SPLITS, SplitShares
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import StdioServer
from tests.run.world import TRAIN
from tests.running import mcpagent, refused
from tests.synth.running import explored, write_config

SMALL = Path(__file__).parents[2] / "cli" / "small_servers.py"


@pytest.mark.parametrize(("ships", "seed"), [(3, 0), (5, 1)])
def test_each_split_that_is_asked_for_has_a_task_and_no_entity_of_another(ships: int, seed: int) -> None:
    server = StdioServer(name="harbour", command=sys.executable, args=(str(SMALL), "harbour", str(ships)))
    data = explored(ToolPool([server]), {"train": 20, "validation": 4, "heldout": 6}, seed=seed)
    assert all(data.tasks[split] for split in SPLITS)
    about = {split: {task.extra_info["about"] for task in data.tasks[split]} for split in SPLITS}
    assert not about["train"] & (about["validation"] | about["heldout"])
    assert not about["validation"] & about["heldout"]


def test_where_there_is_too_little_training_comes_first() -> None:
    assert SplitShares().assign(["a"], seed=0, least=dict.fromkeys(SPLITS, 1)) == {"a": "train"}
    two = SplitShares().assign(["a", "b"], seed=0, least=dict.fromkeys(SPLITS, 1))
    assert sorted(two.values()) == ["train", "validation"]


@pytest.mark.parametrize("count", [3, 7, 50, 2000])
@pytest.mark.parametrize("seed", range(5))
def test_an_assignment_gives_each_split_its_least_and_moves_no_more_keys(count: int, seed: int) -> None:
    shares, keys = SplitShares(), [f"key-{n}" for n in range(count)]
    assigned = shares.assign(keys, seed=seed, least=dict.fromkeys(SPLITS, 1))
    by_hash = {key: shares.split_of(key, seed=seed) for key in keys}
    assert set(assigned.values()) == set(SPLITS)
    missing = len(set(SPLITS) - set(by_hash.values()))
    assert sum(assigned[key] != by_hash[key] for key in keys) == missing


def test_gen_data_says_in_one_sentence_which_split_is_short_and_writes_no_empty_file(tmp_path: Path) -> None:
    write_config(tmp_path, "harbour", SMALL, "harbour", 1)
    counts = ("--train", "20", "--validation", "4", "--heldout", "6")
    done = mcpagent("gen-data", "--servers", "mcp.json", *counts, "--out", "d", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if " of 20 tasks" in line]
    assert "no file" in said and "things to ask about" in said
    document = json.loads(done.stdout)
    written = {path.stem for path in (tmp_path / "d").glob("*.jsonl")}
    assert written == set(document["paths"]) < set(SPLITS)
    assert all(list(read_tasks(tmp_path / "d" / f"{split}.jsonl")) for split in written)
    assert document["short"]["train"]["asked"] == 20
    assert all(document["short"][split]["made"] == 0 for split in set(SPLITS) - written)


def templates_of_tables(folder: Path, *, slots: int) -> Path:
    """A server with three tables, and a template that needs `slots` of them for a task."""
    write_config(folder, "sqlite", SMALL, "sqlite")
    templates = folder / "templates"
    templates.mkdir()
    (templates / "pools.yaml").write_text(
        "table: {list: {server: sqlite, tool: list_tables, items: tables, field: table}}\n"
    )
    named = [f"t{n}" for n in range(slots)]
    steps = [f"  - {{server: sqlite, tool: describe_table, params: {{table: '{{{n}}}'}}}}" for n in named]
    (templates / "columns.yaml").write_text(
        "name: columns\ncomplexity: simple\n"
        f"prompts: ['How many columns has {' and '.join(f'{{{n}}}' for n in named)}, the last one counts?']\n"
        f"slots: {{{', '.join(f'{n}: table' for n in named)}}}\n"
        "plan:\n" + "\n".join(steps) + "\n"
        f"answer: {{type: number, value: '${{step{slots}.columns}}', tolerance: 0.001}}\n"
        f"reference_answer: 'It has ${{step{slots}.columns}}.'\n"
    )
    return folder


def test_templates_with_three_entities_give_each_split_its_own(tmp_path: Path) -> None:
    home = templates_of_tables(tmp_path, slots=1)
    words = ("--templates", "templates", "--servers", "mcp.json", "--out", "d", "--json")
    done = mcpagent("gen-data", *words, "--train", "9", "--validation", "4", "--heldout", "6", cwd=home)
    assert done.returncode == 0, done.stderr
    asked = {
        split: [task.prompt[-1].content for task in read_tasks(home / f"d/{split}.jsonl")] for split in SPLITS
    }
    assert [len(texts) for texts in asked.values()] == [1, 1, 1]
    assert len({text for texts in asked.values() for text in texts}) == 3
    short = json.loads(done.stdout)["short"]
    assert short == {
        split: {"made": 1, "asked": n} for split, n in (("train", 9), ("validation", 4), ("heldout", 6))
    }
    (said,) = [line for line in done.stderr.splitlines() if " of 9 tasks" in line]
    assert "1 table" in said and "pools.yaml" in said


def test_templates_that_need_all_entities_leave_the_other_splits_without_a_file(tmp_path: Path) -> None:
    home = templates_of_tables(tmp_path, slots=2)
    words = ("--templates", "templates", "--servers", "mcp.json", "--out", "d")
    done = mcpagent("gen-data", *words, "--train", "2", "--validation", "1", "--heldout", "1", cwd=home)
    assert done.returncode == 0, done.stderr
    assert [path.stem for path in (home / "d").glob("*.jsonl")] == ["train"]
    assert "validation has 0 of 1 tasks and no file" in done.stderr


def test_templates_without_a_single_task_are_an_error(tmp_path: Path) -> None:
    home = templates_of_tables(tmp_path, slots=4)
    done = mcpagent("gen-data", "--templates", "templates", "--servers", "mcp.json", "--out", "d", cwd=home)
    assert "no task was made" in refused(done) and "pools.yaml" in done.stderr
    assert not list((home / "d").glob("*.jsonl"))


def test_split_writes_no_empty_file_and_gives_each_part_a_group(tmp_path: Path) -> None:
    tasks = list(read_tasks(TRAIN))
    for count, parts in ((3, 3), (2, 2)):
        few = tmp_path / f"{count}.jsonl"
        write_jsonl(few, tasks[:count])
        out = tmp_path / str(count)
        done = mcpagent("data", "split", few, "--group-by", "plan", "--out", out, "--json")
        assert done.returncode == 0, done.stderr
        assert len(list(out.glob("*.jsonl"))) == parts == len(json.loads(done.stdout)["paths"])
        assert ("no file" in done.stderr) == (parts < 3)
        assert all(list(read_tasks(path)) for path in out.glob("*.jsonl"))


def test_validate_writes_no_file_where_no_record_is_good(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": []}\n')
    out = tmp_path / "good.jsonl"
    done = mcpagent("data", "validate", tmp_path / "bad.jsonl", "--no-catalog", "--out", out)
    assert done.returncode == 2 and not out.exists()
    assert "is not written" in done.stderr


def test_training_without_a_validation_file_is_offered_to_do_without(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", read_tasks(TRAIN))
    config = load_train_config([], [f"data.train={tmp_path / 'train.jsonl'}"]).config
    with pytest.raises(UserError) as missing:
        evaluated_file(config)
    (tmp_path / "validation.jsonl").write_text("")
    empty_file = evaluated_file(config)
    assert empty_file is not None
    with pytest.raises(UserError) as empty:
        open_tasks(config, empty_file)
    for error in (missing.value, empty.value):
        assert "training.eval_every=0" in str(error.remedy)
    assert evaluated_file(load_train_config([], ["training.eval_every=0"]).config) is None
