"""`gen-data --explore` as a person meets it: values that are named, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import mcpagent, refused
from tests.synth.running import write_config

ARCHIVE = Path(__file__).with_name("archive.py")
COUNTS = ("--train", "10", "--validation", "0", "--heldout", "2")
EXPLORE = ("gen-data", "--explore", "--servers", "mcp.json", *COUNTS)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_config(tmp_path, "archive", ARCHIVE, tmp_path)
    return tmp_path


def calls(home: Path) -> list[tuple[str, dict[str, Any]]]:
    return [tuple(json.loads(line)) for line in (home / "calls.log").read_text().splitlines()]


@pytest.mark.parametrize("name", ["list_records.shelf", "archive.shelf"])
def test_a_value_is_named_for_a_parameter_by_as_much_of_its_name_as_one_likes(name: str, home: Path) -> None:
    done = mcpagent(*EXPLORE, "--seed-value", f"{name}=north/7", "--out", "d", "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert ("list_records", {"shelf": "north/7"}) in calls(home)
    facts = document["explored"]["facts"]
    assert facts["archive.list_records"] == 1 and facts["archive.get_record"] == 20
    assert document["explored"]["edges"] > 0 and document["records"] == 12


def test_several_values_are_given_with_their_types(home: Path) -> None:
    values = ("shelf=south/1", "shelf=north/7", "archive.count_records.grams=410")
    given = [word for value in values for word in ("--seed-value", value)]
    done = mcpagent(*EXPLORE, *given, "--out", "d", "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    made = calls(home)
    assert ("count_records", {"grams": 410}) in made and ("list_records", {"shelf": "south/1"}) in made
    assert json.loads(done.stdout)["explored"]["facts"]["archive.get_record"] == 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed-value", "shelfe=a"], "did you mean shelf"),
        (["--seed-value", "weather=a"], "no tool has a parameter 'weather'"),
        (["--seed-value", "archive.get_record.shelf=a"], "no tool has a parameter"),
        (["--seed-value", "shelf"], "PARAM=VALUE"),
        (["--seed-value", "=a"], "PARAM=VALUE"),
        (["--seed-value", "grams=heavy"], "does not take it as grams: 'heavy' is not of type"),
        (["--seed-value", "grams=110.5"], "does not take it as grams: 110.5 is not of type"),
        (["--seed-value", "seal.shelf=a"], "--read-only archive.seal"),
        (["--seed-value", "shelf=a", "--llm"], "not for --llm"),
    ],
)
def test_a_value_that_fits_nothing_is_an_error_that_says_why_and_nothing_is_called(
    words: list[str], said: str, home: Path
) -> None:
    done = mcpagent(*EXPLORE, *words, "--out", "d", cwd=home)
    assert said in refused(done) + done.stderr
    assert not (home / "calls.log").exists() and not list((home / "d").glob("*.jsonl"))


def test_values_for_exploring_are_refused_where_there_are_templates(tmp_path: Path) -> None:
    done = mcpagent("gen-data", "--seed-value", "ticker=AAPL", "--out", "d", cwd=tmp_path)
    assert "add --explore" in refused(done) + done.stderr


def test_the_screen_and_the_document_say_what_was_learned_and_why_tools_gave_nothing(home: Path) -> None:
    done = mcpagent(*EXPLORE, "--seed-value", "grams=410", "--out", "d", "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    explored = json.loads(done.stdout)["explored"]
    by_reason = {silence["reason"]: silence for silence in explored["silent"]}
    assert by_reason["not_read_only"]["tools"] == ["archive.burn_record", "archive.seal"]
    assert "2 tools do not say that they only read" in by_reason["not_read_only"]["sentence"]
    assert "--read-only" in by_reason["not_read_only"]["sentence"]
    lacking = [silence for silence in explored["silent"] if silence["reason"] == "no_value"]
    said = " ".join(silence["sentence"] for silence in lacking)
    assert "--seed-value shelf=" in said and "--seed-value record=" in said
    assert "archive.list_records said: the archive has no such thing" in said
    silent = {tool for silence in explored["silent"] for tool in silence["tools"]}
    assert silent | set(explored["facts"]) == {
        f"archive.{name}" for name in ("list_records", "get_record", "count_records", "burn_record", "seal")
    }
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    for silence in explored["silent"]:
        assert silence["sentence"] in lines
    assert 0 < explored["failed"] <= explored["calls"] <= len(calls(home))
    (learned,) = [line for line in lines if line.startswith("learned:")]
    assert f"{explored['calls']} calls" in learned and f"{explored['failed']} failed" in learned
    assert any(line.startswith("Exploring: ") for line in lines)
