"""Servers that do not say which of their tools only read: the guess is taken, and remembered."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from mcpagent.core.tools import ToolSpec
from mcpagent.storage.datasets import read_tasks
from mcpagent.tools.words import seems_to_read
from tests.running import mcpagent
from tests.synth.running import write_config
from tests.test_interrupts import on_a_terminal, read_until

LIGHTHOUSES = Path(__file__).with_name("silent_server.py")


@pytest.mark.parametrize(
    ("name", "description", "reads"),
    [
        ("get_note", "", True),
        ("search_notes", "", True),
        ("get_book", "Get a book", True),
        ("moons", "List the moons of a planet", True),
        ("delete_note", "Delete a note", False),
        ("resolve_blocker", "Resolve a blocker and set its task to in progress", False),
        ("next_track", "Play the next track", False),
        ("frobnicate", "Frobnicate the notes", False),
        ("runner", "One runner by bib number.", False),
        ("splits", "The times of a runner.\nDeletes nothing.", False),
        ("bed", "Who or what is in one bed", False),
        ("room_schedule", "Everything that happens in a room", False),
        ("order_status", "Get the status of an order", True),
        ("door", "The remote: open or close it", False),
        ("book_room", "A room is reserved", False),
        ("lamp", "Toggle the light of a room, or all of them", False),
        ("lights", "Every light is deleted", False),
        ("read_query", "Run a SELECT query on the database", False),
        ("get_query_plan", "The plan of a query.\n\nArgs:\n  text: SQL", False),
        ("evaluate", "A JavaScript expression", False),
        ("get_issues", "By GraphQL", False),
    ],
)
def test_what_a_tool_seems_to_do_is_told_by_its_first_words(name: str, description: str, reads: bool) -> None:
    schema = {"properties": {"text": {"type": "string"}}}
    spec = ToolSpec(server="s", name=name, description=description, input_schema=schema)
    assert seems_to_read(spec) is reads


@pytest.mark.parametrize(
    ("names", "readers"),
    [
        (["mcp_cook_getRecipes", "mcp_cook_addRecipe", "mcp_cook_getMeal"], [True, False, True]),
        (["toggle_view", "toggle_mode"], [False, False]),
        (["get_ship", "get_port"], [True, True]),
    ],
)
def test_what_all_names_begin_with_is_no_verb_if_verbs_come_after_it(
    names: list[str], readers: list[bool]
) -> None:
    specs = [ToolSpec(server="s", name=name, input_schema={}) for name in names]
    assert [seems_to_read(spec, specs) for spec in specs] == readers


@pytest.mark.system
def test_the_guess_is_taken_if_told_and_stands_beside_the_dataset(tmp_path: Path) -> None:
    write_config(tmp_path, "silent", "-S", LIGHTHOUSES, tmp_path / "log")
    counts = ("--train", "8", "--validation", "0", "--heldout", "2", "--out", "d", "--json")
    words = ("gen-data", "--explore", "--servers", "mcp.json", *counts)
    asked = mcpagent(*words, cwd=tmp_path)
    unmarked, safe, again = asked.stderr.splitlines()[-3:]
    assert asked.returncode == 2 and "3 of 3 tools do not say" in unmarked
    assert safe == "  2 of them look safe: silent.list_lamps, silent.get_lamp"
    assert again == f"  mcpagent {' '.join(words)} --yes-read-only"
    assert not (tmp_path / "d").exists() or not list((tmp_path / "d").glob("*.jsonl"))
    done = mcpagent(*words, "--yes-read-only", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "d" / "servers.yaml").read_text())["tools"]["read_only"] == [
        "silent.list_lamps",
        "silent.get_lamp",
    ]
    assert len(list(read_tasks(tmp_path / "d" / "train.jsonl"))) == 8
    assert "break_lamp" not in (tmp_path / "log").read_text()
    again = mcpagent(*words, "--overwrite", cwd=tmp_path)
    assert again.returncode == 0, "the guess that was taken is remembered"
    both = mcpagent(*words, "--overwrite", "--yes-read-only", "--read-only", "silent.get_lamp", cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    kept = yaml.safe_load((tmp_path / "d" / "servers.yaml").read_text())["tools"]["read_only"]
    assert sorted(kept) == ["silent.get_lamp", "silent.list_lamps"], "the guess next to what is named"


@pytest.mark.system
def test_a_person_at_a_terminal_is_asked_once_and_enter_takes_what_looks_safe(tmp_path: Path) -> None:
    write_config(tmp_path, "silent", "-S", LIGHTHOUSES, tmp_path / "log")
    counts = ["--train", "2", "--validation", "0", "--heldout", "0", "--out", "d"]
    words = ["gen-data", "--explore", "--servers", "mcp.json", *counts]
    with on_a_terminal(words, tmp_path) as (process, terminal):
        question = read_until(terminal, "or none")
        os.write(terminal, b"\r")
        seen = read_until(terminal, "--data d\r\n", read_until(terminal, "Next:"))
        assert process.wait() == 0
    bars = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert "2/2" in bars and not re.search(r"left +\S+\s*\n", bars), "a finished bar says what it did last"
    assert "Next: mcpagent env check --data d" in seen
    ticks = re.findall(r"\[[x ]\] silent\.\w+", question)
    assert ticks == ["[x] silent.list_lamps", "[x] silent.get_lamp", "[ ] silent.break_lamp"]
    assert "Break the lamp of a lighthouse" in question
    kept = yaml.safe_load((tmp_path / "d" / "servers.yaml").read_text())["tools"]["read_only"]
    assert kept == ["silent.list_lamps", "silent.get_lamp"]


@pytest.mark.system
@pytest.mark.parametrize(
    "words", ["quickstart --out q", "chat openai:m --once Hello", "gen-data --llm --out d"]
)
def test_every_command_says_how_many_are_unmarked_which_look_safe_and_what_to_type(
    tmp_path: Path, words: str
) -> None:
    write_config(tmp_path, "silent", "-S", LIGHTHOUSES, tmp_path / "log")
    given = [*words.split(), "--servers", "mcp.json"]
    done = mcpagent(*given, cwd=tmp_path, env={"OPENAI_API_KEY": "sk-none"})
    unmarked, safe, again = done.stderr.splitlines()[-3:]
    assert done.returncode == 2 and "3 of 3 tools do not say" in unmarked and "2 of them look safe" in safe
    assert again == f"  mcpagent {' '.join(given)} --yes-read-only"
    assert not (tmp_path / "log").exists(), "no tool was called"


@pytest.mark.system
def test_a_task_that_is_right_once_only_is_left_out(tmp_path: Path) -> None:
    """The server tells other heights after its third start."""
    write_config(tmp_path, "silent", "-S", LIGHTHOUSES, tmp_path / "log", "--grows")
    counts = ("--train", "8", "--validation", "0", "--heldout", "0", "--out", "d", "--json")
    read_only = ("--read-only", "silent.list_lamps", "--read-only", "silent.get_lamp")
    done = mcpagent("gen-data", "--explore", "--servers", "mcp.json", *read_only, *counts, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["fresh_start"]
    assert told["played"] == 8 and sum(told["left_out"].values()) > 0
    assert "left out, whose plans are not right on newly started servers" in done.stderr
