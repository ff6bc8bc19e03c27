"""Datasets in shards: merged they are the files of one run, and what cannot be one dataset is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mcpagent.storage.datasets import read_tasks
from mcpagent.synth.templates.rules import DatasetShard, text_hash
from tests.llm.service import service
from tests.running import mcpagent, refused
from tests.synth.llm.model import KINDS, model
from tests.synth.llm.running import generate

pytestmark = pytest.mark.system

HARBOUR = Path(__file__).parents[1] / "cli" / "harbour.py"
SPLITS = ("train", "validation", "heldout")
RULES = ("--train", "6", "--validation", "0", "--heldout", "3", "--seed", "4")


def made(home: Path, words: Sequence[str], out: str, shard: str | None = None) -> Path:
    of = () if shard is None else ("--shard", shard)
    done = mcpagent("gen-data", *words, *of, "--out", out, "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    return home / out if shard is None else home / document["path"]


def in_shards(home: Path, words: Sequence[str], count: int, out: str = "parts") -> list[Path]:
    return [made(home, words, out, f"{number}/{count}") for number in range(1, count + 1)]


def merged(home: Path, parts: Sequence[Path], out: str = "merged") -> Path:
    done = mcpagent("data", "merge", *map(str, reversed(parts)), "--out", out, "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["shards"] == len(parts)
    assert document["records"] == sum(
        len(list(read_tasks(home / path))) for path in document["paths"].values()
    )
    return home / out


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".jsonl", ".yaml")}


def refusal(home: Path, parts: Sequence[Path]) -> str:
    text = refused(mcpagent("data", "merge", *map(str, parts), "--out", "refused", cwd=home))
    assert not (home / "refused").exists(), "nothing is written"
    return " ".join(text.split())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for ships in (6, 40):
        entry = {"command": sys.executable, "args": [str(HARBOUR), str(ships)]}
        (folder / f"{ships}.json").write_text(json.dumps({"mcpServers": {"harbour": entry}}))
    return folder


@pytest.fixture(scope="module")
def parts(home: Path) -> list[Path]:
    return in_shards(home, RULES, 2)


def edited(part: Path, folder: Path, *rows: dict[str, object], drop: int = 0, **head: object) -> Path:
    """The part as it is after somebody changed it."""
    first, *lines = part.read_text().splitlines()
    lines = lines[: len(lines) - drop] + [json.dumps(row) for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / part.name
    path.write_text("\n".join([json.dumps(json.loads(first) | head), *lines]) + "\n")
    return path


def test_shards_of_templates_are_the_bytes_of_one_run(home: Path, parts: list[Path]) -> None:
    assert files(merged(home, parts)) == files(made(home, RULES, "whole"))


@pytest.mark.parametrize(("ships", "train"), [(40, "12"), (6, "5000")])
@pytest.mark.slow
def test_shards_of_exploring_are_the_bytes_of_one_run(home: Path, ships: int, train: str) -> None:
    """With 6 ships there are fewer tasks than are asked for, and all of them are there."""
    counts = ("--train", train, "--validation", "3", "--heldout", "4")
    words = ("--explore", "--servers", f"{ships}.json", *counts)
    whole = files(made(home, words, f"whole-{ships}"))
    assert set(whole) == {*(f"{split}.jsonl" for split in SPLITS), "servers.yaml"}
    assert files(merged(home, in_shards(home, words, 3, f"parts-{ships}"), f"merged-{ships}")) == whole


def test_shards_of_a_model_are_the_bytes_of_one_run(tmp_path: Path) -> None:
    words = ("--n-samples", str(2 * KINDS), "--train", "4", "--validation", "1", "--heldout", "2")
    words += ("--request-timeout", "3")  # two samples hang
    with service(model) as running:
        generate(running.url, tmp_path / "whole", *words)
    with service(model) as running:
        documents = [
            generate(running.url, tmp_path / "parts", *words, "--shard", f"{number}/3")
            for number in (1, 2, 3)
        ]
    assert sorted(len(Path(d["path"]).read_text().splitlines()) - 1 for d in documents) == [13, 13, 14]
    whole = files(tmp_path / "whole")
    del whole["llm-journal.jsonl"]
    assert set(whole) > {"train.jsonl", "heldout.jsonl"}
    assert files(merged(tmp_path, [Path(d["path"]) for d in documents])) == whole
    lost = refusal(tmp_path, [Path(d["path"]) for d in documents[1:]])
    assert "1 of 3 shards are missing, such as 1/3" in lost


def test_a_lost_and_a_doubled_shard_are_refused(home: Path, parts: list[Path], tmp_path: Path) -> None:
    assert "1 of 2 shards are missing, such as 2/2" in refusal(home, parts[:1])
    assert "is shard 1 of 2, which" in refusal(home, [*parts, edited(parts[0], tmp_path)])
    assert "is a shard of 3, and" in refusal(home, [*parts, edited(parts[0], tmp_path / "3", shard=[3, 3])])
    assert "is not a shard of a dataset" in refusal(home, [*parts, home / "6.json"])


def test_a_lost_a_doubled_and_a_foreign_task_are_refused(
    home: Path, parts: list[Path], tmp_path: Path
) -> None:
    rows = len(parts[0].read_text().splitlines()) - 1
    assert f"{rows - 1} of its {rows} rows are there" in refusal(
        home, [edited(parts[0], tmp_path / "lost", drop=1), parts[1]]
    )
    own, foreign = (json.loads(part.read_text().splitlines()[1]) for part in parts)
    doubled = edited(parts[0], tmp_path / "doubled", own, rows=rows + 1)
    assert f"has candidate {own['index']} of train, which" in refusal(home, [doubled, parts[1]])
    strange = edited(parts[0], tmp_path / "foreign", foreign, rows=rows + 1)
    assert "is another shard's" in refusal(home, [strange, parts[1]])


def test_what_was_made_in_another_way_or_on_other_data_is_refused(
    home: Path, parts: list[Path], tmp_path: Path
) -> None:
    run = json.loads(parts[1].read_text().splitlines()[0])["run"]
    others = {"seed": 5, "counts": {"train": 7}, "catalog_hash": "other", "templates_sha256": "other"}
    for name, value in others.items():
        other = edited(parts[1], tmp_path / name, run=run | {name: value})
        assert f"was made with {name} {value}, and" in refusal(home, [parts[0], other])
    divided = edited(parts[1], tmp_path / "divided", run=run | {"divided": "other"})
    assert "divides what there is to ask about into other splits" in refusal(home, [parts[0], divided])


def test_a_task_that_would_be_in_two_splits_is_refused(home: Path, parts: list[Path], tmp_path: Path) -> None:
    first, *lines = parts[0].read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    one = next(row for row in rows if row["split"] == "heldout" and "task" in row)
    one["task"]["extra_info"]["split"] = "train"
    folder = tmp_path / "split"
    folder.mkdir()
    path = folder / parts[0].name
    path.write_text("\n".join([first, *map(json.dumps, rows)]) + "\n")
    assert "says that it is of train, not of heldout" in refusal(home, [path, parts[1]])


def test_a_shard_that_ends_too_early_is_named(home: Path, parts: list[Path], tmp_path: Path) -> None:
    head = json.loads(parts[1].read_text().splitlines()[0])
    short = edited(parts[1], tmp_path / "short", drawn=head["drawn"] | {"heldout": 1})
    assert "ends after 1 candidate, before there are enough of heldout" in refusal(home, [parts[0], short])


def test_every_candidate_belongs_to_one_shard_and_shares_are_alike() -> None:
    shards = [DatasetShard(number=number, of=8, seed=1) for number in range(1, 9)]
    keys = [text_hash(f"candidate {number}") for number in range(8000)]
    shares = [sum(shard.has(key) for key in keys) for shard in shards]
    assert sum(shares) == len(keys) and all(sum(shard.has(key) for shard in shards) == 1 for key in keys[:99])
    # 1000 each; a standard deviation is sqrt(8000 * 1/8 * 7/8) = 29.6.
    assert all(abs(share - 1000) < 5 * 29.6 for share in shares)


@pytest.mark.parametrize("wrong", ["0/2", "3/2", "2", "a/b"])
def test_a_shard_that_there_is_not_is_refused(home: Path, wrong: str) -> None:
    text = refused(mcpagent("gen-data", *RULES, "--shard", wrong, "--out", "wrong", cwd=home))
    assert "is not I/N with 1 <= I <= N" in text and not (home / "wrong").exists()


def test_a_shard_is_not_replaced_and_rewriting_is_not_for_shards(home: Path, parts: list[Path]) -> None:
    again = mcpagent("gen-data", *RULES, "--shard", "1/2", "--out", "parts", cwd=home)
    assert "--overwrite" in refused(again)
    words = ("--explore", "--rewrite", "--shard", "1/2", "--out", "rewritten")
    assert "--rewrite is not for --shard" in refused(mcpagent("gen-data", *words, cwd=home))
    assert parts[0].exists() and not (home / "rewritten").exists()
