"""`mcpagent gen-data`, `data validate` and `data stats` as a user runs them."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.running import mcpagent

SMALL = ("--train", "20", "--validation", "5", "--heldout", "15", "--seed", "5")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What gen-data says of the dataset that it wrote."""
    out = tmp_path_factory.mktemp("data") / "processed"
    done = mcpagent("gen-data", *SMALL, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def dataset(document: dict[str, Any]) -> Path:
    return Path(document["paths"]["train"]).parent


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def planned(dataset: Path) -> list[dict[str, Any]]:
    """The training tasks that have a plan."""
    rows = records(dataset / "train.jsonl")
    return [row for row in rows if row["reward_spec"]["ground_truth"]["tool_sequence"]]


def test_gen_data_writes_the_three_splits_and_counts_them(dataset: Path, document: dict[str, Any]) -> None:
    assert sorted(path.name for path in dataset.iterdir()) == [
        "heldout.jsonl",
        "servers.yaml",
        "train.jsonl",
        "validation.jsonl",
    ]
    assert {split: len(records(dataset / f"{split}.jsonl")) for split in document["by_split"]} == {
        "heldout": 15,
        "train": 20,
        "validation": 5,
    }
    assert document["records"] == 40 == sum(document["by_template"].values())
    assert document["by_split"] == {"heldout": 15, "train": 20, "validation": 5}
    assert Path(document["paths"]["train"]) == dataset / "train.jsonl"
    assert document["catalog_hash"] == records(dataset / "train.jsonl")[0]["extra_info"]["catalog_hash"]


def test_gen_data_replaces_splits_only_when_told_and_leaves_no_split_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "validation.jsonl").write_text("precious\n")
    counts = ("--train", "5", "--validation", "0", "--heldout", "5", "--out", tmp_path)
    refused = mcpagent("gen-data", *counts)
    assert refused.returncode == 2
    assert "--overwrite" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["validation.jsonl"]
    assert mcpagent("gen-data", *counts, "--overwrite").returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["heldout.jsonl", "train.jsonl"]


def test_gen_data_that_fails_writes_nothing(tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "pools.yaml").write_text("ticker: {keys_of: nothing}\n")
    (templates / "t.yaml").write_text("name: t\n")
    done = mcpagent("gen-data", "--templates", templates, "--out", tmp_path / "out", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["where"].endswith("pools.yaml:1")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_validate_accepts_what_gen_data_wrote(dataset: Path) -> None:
    done = mcpagent("data", "validate", dataset / "train.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["records"], report["valid"], report["rejects"]) == (20, 20, {})
    assert all(stage["in"] == stage["out"] == 20 for stage in report["stages"])


def test_validate_names_the_line_and_the_reason_of_every_bad_record(dataset: Path, tmp_path: Path) -> None:
    good = planned(dataset)
    truths = [record["reward_spec"]["ground_truth"] for record in good]
    del truths[2]["task_id"]
    good[3]["prompt"].append({"role": "assistant", "content": "Hello."})
    truths[4]["tool_sequence"][0]["params"]["x"] = "${step9.y}"
    truths[5]["success"] = {"must_call_tool": "weather.now"}
    del good[5]["extra_info"]["tools"]
    truths[7]["task_id"] = truths[0]["task_id"]
    broken = [json.dumps(record) for record in good[:8]]
    broken[1] = "{not json"
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join(broken) + "\n")
    done = mcpagent("data", "validate", path, "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    found = {int(f["where"].rpartition(":")[2]): f["code"] for f in report["findings"]}
    assert found == {
        2: "json",
        3: "schema",
        4: "not_compact",
        5: "ground_truth",
        6: "unknown_tool",
        8: "duplicate_id",
    }
    assert (report["records"], report["valid"]) == (8, 2)
    assert report["stages"][0] == {"name": "json", "in": 8, "out": 7, "rejects": {"json": 1}}
    assert report["stages"][-1] == {"name": "ids", "in": 3, "out": 2, "rejects": {"duplicate_id": 1}}
    assert f"{path}:6: unknown_tool" in done.stderr


@pytest.mark.parametrize("command", ["validate", "stats"])
def test_a_missing_or_empty_dataset_is_one_clear_error(command: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    for name in ("empty.jsonl", "missing.jsonl"):
        done = mcpagent("data", command, tmp_path / name)
        assert done.returncode == 2
        assert name in done.stderr
        assert "Traceback" not in done.stderr


def test_stats_counts_agree_with_the_records(dataset: Path) -> None:
    path = dataset / "heldout.jsonl"
    stats = json.loads(mcpagent("data", "stats", path, "--json").stdout)
    truths = [record["reward_spec"]["ground_truth"] for record in records(path)]
    assert stats["records"] == len(truths) == sum(stats["by_class"].values())
    for complexity, count in stats["by_complexity"].items():
        assert count == sum(truth["complexity"] == complexity for truth in truths)
    for server, count in stats["by_server"].items():
        assert count == sum(server in {step["server"] for step in t["tool_sequence"]} for t in truths)
    assert stats["by_split"] == {"heldout": 15}
    assert stats["path"] == str(path)


def test_the_sample_in_the_repository_is_what_its_command_writes(tmp_path: Path) -> None:
    data = Path(__file__).parents[3] / "data"
    lines = (line.strip() for line in (data / "README.md").read_text().splitlines())
    command = next(line for line in lines if line.startswith("mcpagent gen-data"))
    arguments = [str(tmp_path) if part == "data/samples" else part for part in command.split()[1:]]
    assert mcpagent(*arguments).returncode == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in (data / "samples").iterdir())
    for name in names:
        assert (tmp_path / name).read_bytes() == (data / "samples" / name).read_bytes(), f"run: {command}"


def test_execution_finds_what_reading_cannot(dataset: Path, tmp_path: Path) -> None:
    two_steps = [
        record
        for record in records(dataset / "train.jsonl")
        if record["extra_info"]["template"] in ("price-post", "close-post")
    ][:3]
    truths = [record["reward_spec"]["ground_truth"] for record in two_steps]
    truths[0]["state"]["slack"][0]["expect"] = {"messages[0].text": "no such thing"}
    # The profile of the stock is asked for in vain.
    ticker = next(iter(truths[1]["tool_sequence"][0]["params"].values()))
    profile = {"step": 3, "server": "fmp", "tool": "fmp_get_company_profile", "params": {"symbol": ticker}}
    truths[1]["tool_sequence"].append(profile)
    path, good = tmp_path / "tasks.jsonl", tmp_path / "good.jsonl"
    write(path, two_steps)
    assert mcpagent("data", "validate", path).returncode == 0
    done = mcpagent("data", "validate", path, "--execute", "--out", good, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 2
    # The first is not reached a second time either, which is looked at before the reward.
    assert report["rejects"] == {"not_repeatable": 1, "not_minimal": 1}
    assert [record["reward_spec"]["ground_truth"]["task_id"] for record in records(good)] == [
        truths[2]["task_id"]
    ]
    assert report["stages"][-1]["out"] == report["valid"] == 1


def test_arguments_limits_and_answers_in_the_question_are_found_without_running(
    dataset: Path, tmp_path: Path
) -> None:
    single = [r for r in records(dataset / "train.jsonl") if r["extra_info"]["template"] == "quote-price"]
    rows = (single * 3)[:3]
    rows = [json.loads(json.dumps(row)) for row in rows]
    rows[0]["reward_spec"]["ground_truth"]["tool_sequence"][0]["params"] = {"symbol": 3}
    rows[1]["reward_spec"]["ground_truth"]["max_turns"] = 1
    price = rows[2]["reward_spec"]["ground_truth"]["final_answer"]["value"]
    rows[2]["prompt"][-1]["content"] = f"Is it {price}? " + rows[2]["prompt"][-1]["content"]
    path = tmp_path / "tasks.jsonl"
    write(path, rows)
    report = json.loads(mcpagent("data", "validate", path, "--json").stdout)
    assert [f["code"] for f in report["findings"]] == ["invalid_arguments", "limits", "answer_in_prompt"]


def test_no_text_that_a_task_names_is_in_two_splits(dataset: Path, tmp_path: Path) -> None:
    source = tmp_path / "all.jsonl"
    source.write_text("".join((dataset / f"{name}.jsonl").read_text() for name in ("train", "heldout")))
    arguments = ("data", "split", source, "--out", tmp_path / "s", "--heldout", "0.4", "--drop-crossing")
    done = mcpagent(*arguments, "--json")
    outcome = json.loads(done.stdout)
    parts = {name: records(Path(path)) for name, path in outcome["paths"].items()}
    named = {
        name: {text for record in part for text in re.findall(r"\b(?:[A-Z]{4}|C[0-9]{3})\b", asked(record))}
        for name, part in parts.items()
    }
    assert all(named.values())
    assert not named["train"] & named["heldout"]
    assert sum(map(len, parts.values())) + outcome["crossing"] == len(records(source))


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir()
    or Path("/dev/shm").stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev,
    reason="there is no second file system to write to",
)
def test_a_dataset_is_divided_onto_another_file_system(dataset: Path) -> None:
    source = dataset / "train.jsonl"
    before = sorted(source.parent.iterdir())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        done = mcpagent("data", "split", source, "--out", elsewhere, "--heldout", "0.4", "--group-by", "plan")
        assert done.returncode == 0, done.stderr
        parts = sorted(path.name for path in Path(elsewhere).iterdir() if path.suffix == ".jsonl")
        divided = [record for part in parts for record in records(Path(elsewhere) / part)]
    assert parts == ["heldout.jsonl", "train.jsonl", "validation.jsonl"]
    assert len(divided) == len(records(source))
    assert sorted(source.parent.iterdir()) == before


def test_a_dataset_cannot_be_divided_into_a_file(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    done = mcpagent("data", "split", dataset / "train.jsonl", "--out", tmp_path / "taken")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert (tmp_path / "taken").read_text() == "mine"


def test_the_same_plan_in_other_words_is_removed(dataset: Path, tmp_path: Path) -> None:
    rows = planned(dataset)[:5]
    twin = json.loads(json.dumps(rows[0]))
    twin["prompt"][-1]["content"] = "Quite another way to ask."
    twin["reward_spec"]["ground_truth"]["task_id"] = "twin"
    source, target = tmp_path / "tasks.jsonl", tmp_path / "distinct.jsonl"
    write(source, [*rows, twin])
    report = json.loads(mcpagent("data", "dedupe", source, "--out", target, "--json").stdout)
    assert (report["kept"], report["removed"]) == (5, {"same_plan": 1})
    assert [r["prompt"] for r in records(target)] == [r["prompt"] for r in rows]


def test_show_says_what_is_asked_and_what_is_right(dataset: Path) -> None:
    record = planned(dataset)[0]
    truth = record["reward_spec"]["ground_truth"]
    said = mcpagent("data", "show", dataset / "train.jsonl", "--id", truth["task_id"]).stdout
    step = truth["tool_sequence"][0]
    for part in (
        record["prompt"][-1]["content"],
        f"{step['server']}.{step['tool']}",
        str(truth["final_answer"]["value"]),
    ):
        assert part in said
    missing = mcpagent("data", "show", dataset / "train.jsonl", "--id", "nothing")
    assert missing.returncode == 2


def asked(record: dict[str, Any]) -> str:
    """The question and the arguments of the plan."""
    plan = record["reward_spec"]["ground_truth"]["tool_sequence"]
    return json.dumps([record["prompt"][-1]["content"], [step["params"] for step in plan]])
