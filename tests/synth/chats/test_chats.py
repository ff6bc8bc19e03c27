"""`mcpagent convert` on chats: what becomes of each row of a file of sixty."""

import copy
import functools
import gzip
import json
import operator
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.storage.datasets import read_tasks
from mcpagent.synth.chats.read import Chat, holds_chats, read_chats
from mcpagent.synth.tasks.stages import Rejection
from tests.llm.service import API_KEY, Answer, Received, says, service
from tests.running import ROOT, mcpagent, refused
from tests.synth.chats.chats import ALL, SECRET
from tests.synth.chats.servers import TOOLS


def write_servers(folder: Path) -> Path:
    path = folder / "mcp.json"
    servers = {
        name: {
            "command": sys.executable,
            "args": ["-m", "tests.synth.chats.servers", name, str(folder / "ledger")],
            "cwd": str(ROOT),
        }
        for name in TOOLS
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def convert(folder: Path, *options: str | Path) -> Any:
    done = mcpagent(
        "convert", *options, "--servers", folder / "mcp.json", "--out", folder / "mine", "--json", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class World:
    """The converted file of sixty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_servers(folder)
        self.file = write_rows(folder / "chats.jsonl", [row for row, _ in ALL])
        # The process holds its list in memory: one of its own undoes everything.
        alone = ("tools.isolation.todo=episode", "tools.per_server.todo.allow_writes=true")
        self.document = convert(folder, self.file, *(word for each in alone for word in ("--set", each)))
        self.tasks: dict[int, Task] = {}
        for path in self.document["paths"].values():
            self.tasks |= {task.extra_info["line"]: task for task in read_tasks(path)}

    def of(self, name: str) -> list[Task]:
        """The tasks of the rows of a name, one in each dialect."""
        lines = [line for line, (_, row) in enumerate(ALL, start=1) if row.name == name]
        assert len(lines) == 3
        return [self.tasks[line] for line in lines]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("chats"))


def test_every_row_is_a_task_or_is_in_the_table_with_its_line_and_the_reason(world: World) -> None:
    left_out = {row["line"]: row for row in world.document["left_out"]}
    fates = {line: left_out[line]["code"] if line in left_out else "task" for line in range(1, 61)}
    graded = ("the calls", "the state")
    expected = {n: "task" if row.fate in graded else row.fate for n, (_, row) in enumerate(ALL, start=1)}
    assert fates == expected
    assert set(left_out) | set(world.tasks) == set(range(1, 61)) and not set(left_out) & set(world.tasks)
    assert world.document["rows"] == 60 and world.document["records"] == 33
    assert world.document["graded_by"] == Counter(row.fate for _, row in ALL if row.fate in graded)
    rows = [json.loads(line) for line in Path(world.document["rejects_path"]).read_text().splitlines()]
    assert rows == world.document["left_out"] and all(row["why"] for row in rows)


def test_the_first_message_is_the_prompt_and_the_calls_are_the_plan(world: World) -> None:
    for task in world.of("one call"):
        [step] = task.truth.tool_sequence
        assert (step.server, step.tool) == ("library", "get_book")
        assert task.prompt[-1].content == f"How many pages has {step.params['number']}?"
        assert task.truth.reference_answer and task.truth.reference_answer.endswith("pages.")
        assert task.reward_spec.method == "rule" and task.truth.final_answer is None
        assert not task.truth.user_turns, "nobody answered the thanks"
    for task in world.of("chain"):
        assert [step.tool for step in task.truth.tool_sequence] == ["search_books", "get_book"]
    for task in world.of("at once"):
        one, other = task.truth.tool_sequence
        assert one.parallel_group is not None and one.parallel_group == other.parallel_group
    for task in world.of("two turns"):
        assert task.truth.user_turns == ("The last one?",)
        assert [step.user_turn for step in task.truth.tool_sequence] == [0, 1]
    assert "You help readers." in world.of("chain")[0].prompt[0].content


def test_a_call_that_failed_then_as_now_is_no_step(world: World) -> None:
    for task in (*world.of("refused"), *world.of("repaired")):
        [step] = task.truth.tool_sequence
        assert not step.params["number"].endswith("x")


def test_the_message_of_a_log_whose_results_are_others_today_is_not_kept(world: World) -> None:
    assert all(task.truth.reference_answer is None for task in world.of("stale"))
    for name in (
        "no results",
        "one call",
        "new every time",
    ):  # which tells nothing of the number of the request
        assert all(task.truth.reference_answer for task in world.of(name))


def test_a_change_is_graded_by_what_it_leads_to(world: World) -> None:
    for task in world.of("a change"):
        [check] = task.truth.state["todo"]
        title = task.truth.tool_sequence[0].params["title"]
        assert check.call.tool == "list_todos" and title in json.dumps(check.expect)
        assert not task.truth.success.must_call


def test_no_tool_that_may_write_is_called_on_a_server_that_keeps_what_is_written(world: World) -> None:
    called = set((world.folder / "ledger").read_text().split())
    assert called == {"library.search_books", "library.get_book", "library.find_shelf"} | {
        "todo.list_todos",
        "todo.add_todo",
    }


@pytest.mark.parametrize("options", [(), ("--set", "tools.isolation.todo=episode")])
def test_where_what_is_written_may_stay_nothing_of_a_log_is_written(
    world: World, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A process of its own may write to a file: ending it undoes nothing."""
    write_servers(tmp_path)
    document = convert(tmp_path, world.file, *options)
    assert document["rejects"]["may_write"] == 6 and document["records"] == 30
    assert not any("add" in call or "mail" in call for call in (tmp_path / "ledger").read_text().split())
    why = next(row["why"] for row in document["left_out"] if row["code"] == "may_write")
    assert "--read-only todo.add_todo" in why and "--set tools.per_server.todo.workspace=FOLDER" in why


NAMES = (
    "find_person",
    "desk.find_person",
    "desk__find_person",
    "mcp__desk__find_person",
    "mcp_desk_find_person",
)


def test_a_tool_that_is_declared_to_read_is_called_by_any_name_that_hosts_give_it(tmp_path: Path) -> None:
    write_servers(tmp_path)
    rows: list[Any] = []
    for name in (*NAMES, "desk-find-person", "desk/findPerson", "find_persons", "desk"):
        call = {"name": name, "arguments": {"person": name}}
        rows.append(
            [
                {"role": "user", "content": f"Where does {name} sit?"},
                {"role": "assistant", "function_call": call},
                {"role": "function", "name": name, "content": json.dumps({"room": f"R{len(name)}"})},
                {"role": "assistant", "content": "Look."},
            ]
        )
    file = write_rows(tmp_path / "chats.jsonl", rows)
    document = convert(tmp_path, file, "--read-only", "desk.find_person")
    assert document["records"] == len(NAMES) + 2 and document["rejects"] == {"unknown_tool": 2}


def test_a_tool_that_looks_safe_is_called_if_that_is_asked_for(tmp_path: Path) -> None:
    write_servers(tmp_path)
    call = {"name": "find_person", "arguments": {"person": "Ada"}}
    asked = [{"role": "user", "content": "Where is Ada?"}, {"role": "assistant", "function_call": call}]
    file = write_rows(tmp_path / "chats.jsonl", [asked])
    one_file = ("convert", file, "--servers", "mcp.json", "--yes-read-only", "--out", "one.jsonl")
    assert "name a folder" in refused(mcpagent(*one_file, cwd=tmp_path))
    assert not (tmp_path / "one.jsonl").exists()
    assert convert(tmp_path, file, "--yes-read-only")["records"] == 1


def test_a_secret_stands_nowhere_in_what_is_written(world: World) -> None:
    written = [path.read_text() for path in (world.folder / "mine").iterdir() if path.is_file()]
    assert len(written) >= 4 and not any(SECRET in text for text in written)
    assert all("My key is [key]." in task.prompt[-1].content for task in world.of("told secret"))


def test_what_is_about_one_thing_is_in_one_split(world: World) -> None:
    split_of: dict[str, set[str]] = {}
    for task in world.tasks.values():
        for step in task.truth.tool_sequence:
            for value in step.params.values():
                split_of.setdefault(str(value), set()).add(task.extra_info["split"])
    assert all(len(splits) == 1 for splits in split_of.values())
    assert set(world.document["paths"]) == {"train", "validation", "heldout"}


@pytest.mark.parametrize("form", ["array", "lists", "array of lists", "one chat", "pretty", "gz"])
def test_a_file_is_read_in_each_form_that_chats_are_kept_in(tmp_path: Path, form: str) -> None:
    rows = [row for row, what in ALL[:20] if what.name in ("one call", "chain")]
    lists = [row["messages"] for row in rows]
    path = tmp_path / "chats.json"
    texts = {
        "array": json.dumps(rows, indent=1),
        "lists": "\n".join(map(json.dumps, lists)),
        "array of lists": json.dumps(lists),
        "one chat": json.dumps(lists[0], indent=1),
        "pretty": json.dumps(rows[0], indent=1),
        "gz": "\n".join(map(json.dumps, rows)),
    }
    if form == "gz":
        path = tmp_path / "chats.jsonl.gz"
        path.write_bytes(gzip.compress(texts[form].encode()))
    else:
        path.write_text(texts[form])
    assert holds_chats(path)
    expected = [Chat] if form in ("one chat", "pretty") else [Chat, Chat]
    assert [type(chat) for _, chat in read_chats(path)] == expected


JUNK: list[Any] = [
    None,
    0,
    1e9,
    True,
    "",
    "x",
    "{}",
    "[1]",
    [],
    {},
    [None],
    {"a": None},
    [[]],
    {"type": "text"},
]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*above, key)
        yield from places(item, (*above, key))


def test_whatever_stands_in_a_row_it_is_a_chat_or_left_out(tmp_path: Path) -> None:
    rng = Random(1)
    rows: list[Any] = []
    for _ in range(2000):
        row: Any = copy.deepcopy(rng.choice(ALL)[0])
        *path, last = rng.choice(list(places(row)))
        at = functools.reduce(operator.getitem, path, row)
        at[last] = copy.deepcopy(rng.choice(JUNK))
        rows.append(row)
    outcomes = [outcome for _, outcome in read_chats(write_rows(tmp_path / "junk.jsonl", rows))]
    kinds = Counter(type(outcome) for outcome in outcomes)
    assert len(outcomes) == 2000 and set(kinds) == {Chat, Rejection} and min(kinds.values()) > 200


def test_a_broken_line_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    write_servers(tmp_path)
    path = tmp_path / "chats.jsonl"
    path.write_text(f'{{"messages": [\n{json.dumps(ALL[0][0])}\n')
    document = convert(tmp_path, path)
    assert document["records"] == 1
    assert [(row["line"], row["code"]) for row in document["left_out"]] == [(1, "json")]


def test_the_beginning_of_a_longer_chat_is_the_same_chat(tmp_path: Path) -> None:
    write_servers(tmp_path)
    whole = next(row for row, what in ALL if what.name == "two turns")
    beginning = {"messages": whole["messages"][:4]}
    file = write_rows(tmp_path / "chats.jsonl", [beginning, whole])
    document = convert(tmp_path, file)
    assert [(row["line"], row["code"]) for row in document["left_out"]] == [(1, "duplicate")]
    assert "line 2" in document["left_out"][0]["why"]


def test_a_file_of_another_shape_and_chats_without_servers_are_one_error(tmp_path: Path) -> None:
    other = write_rows(tmp_path / "other.jsonl", [{"prompt": "a", "completion": "b"}])
    assert "holds neither chats nor a dependent spec" in refused(mcpagent("convert", other, cwd=tmp_path))
    chats = write_rows(tmp_path / "chats.jsonl", [ALL[0][0]])
    assert "--servers mcp.json" in refused(mcpagent("convert", chats, "--out", "x", cwd=tmp_path))
    assert not (tmp_path / "x").exists()


def test_nothing_is_written_if_no_row_becomes_a_task(tmp_path: Path) -> None:
    write_servers(tmp_path)
    chats = write_rows(tmp_path / "chats.jsonl", [row for row, what in ALL if what.name == "unknown"])
    done = mcpagent("convert", chats, "--servers", tmp_path / "mcp.json", "--out", "x", cwd=tmp_path)
    assert done.returncode == 2 and "none of 3 rows became a task" in done.stderr
    assert "get_weather" in done.stdout and not (tmp_path / "x").exists()


def test_a_model_names_the_answer_and_a_result_has_to_show_it(tmp_path: Path) -> None:
    write_servers(tmp_path)
    named = {
        "one call": {"type": "number", "value": "211", "unit": ""},  # pages of the first book
        "chain": {"type": "name", "value": '"Beyond Brook"', "unit": ""},  # of the second step
        "at once": {"type": "number", "value": "9999", "unit": ""},  # no result has it
        "refused": {"type": "none", "value": "", "unit": ""},
        "stale": {"type": "none", "value": "", "unit": ""},
    }
    kept = [(row, what) for row, what in ALL[:20] if what.name in named]

    def answers(received: Received) -> Answer:
        said = received.messages[1]["content"]
        name = next(what.name for _, what in kept if str(what.turns[0]) in said)
        return says(received, json.dumps({"reason": "it says so", **named[name]}))

    file = write_rows(tmp_path / "chats.jsonl", [row for row, _ in kept])
    with service(answers) as model:
        words = (
            "--servers",
            tmp_path / "mcp.json",
            "--model",
            "scripted",
            "--set",
            f"api.base_url={model.url}",
        )
        out = tmp_path / "all"
        done = mcpagent("convert", file, *words, "--out", out, cwd=tmp_path, env={"OPENAI_API_KEY": API_KEY})
    assert done.returncode == 0, done.stderr
    assert "answers of the model: " in done.stdout and "not_shown 1" in done.stdout
    splits = {path.name: path.read_text() for path in sorted(out.glob("[!r]*.jsonl"))}  # but rejects.jsonl
    everything = tmp_path / "all.jsonl"
    everything.write_text("".join(splits.values()))
    tasks = {kept[task.extra_info["line"] - 1][1].name: task for task in read_tasks(everything)}
    assert set(tasks) == set(named)
    answer = tasks["one call"].truth.final_answer
    assert answer is not None and (answer.type, answer.value) == ("number", 211)
    assert tasks["one call"].truth.answer_line and tasks["one call"].truth.evidence[0].value == 211
    look_up, step = tasks["chain"].truth.tool_sequence
    assert (look_up.model_extra, step.model_extra) == ({"optional": True}, {})
    for name in ("at once", "refused"):
        task = tasks[name]
        assert task.reward_spec.method == "rule+judge" and task.truth.final_answer is None
        assert task.truth.reference_answer
    # The last message of a log whose results are others today is nothing to hold an answer against.
    assert tasks["stale"].reward_spec.method == "rule"
    done = mcpagent("data", "validate", everything, "--servers", "mcp.json", "--execute", cwd=tmp_path)
    assert "5 of 5 records are valid" in done.stdout, done.stderr

    # The same by files: the questions out, and nothing else; the answers in, and the tasks of the endpoint.
    words = ("--servers", tmp_path / "mcp.json", "--model", "scripted", "--set", "output_dir=batches")
    files = [tmp_path / f"{each}.jsonl" for each in ("asked", "answered", "next")]
    (asked, answered, later), same = files, tmp_path / "same"
    done = mcpagent("convert", file, *words, "--out", same, "--batch", asked, cwd=tmp_path)
    assert done.returncode == 0 and "5 questions in" in done.stdout and not [*same.glob("*")], done.stderr
    back: list[str] = []
    for line in map(json.loads, asked.read_text().splitlines()):
        said = answers(Received(line["url"], line["custom_id"], 9, line["body"], "")).body
        back.append(json.dumps({"custom_id": line["custom_id"], "response": {"body": said}}))
    answered.write_text("\n".join(back))
    words = (*words, "--answers", answered, "--batch", later)
    done = mcpagent("convert", file, *words, "--out", same, cwd=tmp_path)
    assert done.returncode == 0 and not later.exists(), done.stderr
    assert {name: (same / name).read_text() for name in splits} == splits
    done = mcpagent("convert", file, "--servers", tmp_path / "mcp.json", "--batch", later, cwd=tmp_path)
    assert "--batch and --answers are for --model" in refused(done)
    # The questions of another file have a journal of their own.
    other = tmp_path / "other.jsonl"
    other.write_text(file.read_text())
    words = ("--servers", tmp_path / "mcp.json", "--model", "scripted", "--set", "output_dir=batches")
    done = mcpagent("convert", other, *words, "--out", tmp_path / "other", "--batch", later, cwd=tmp_path)
    assert done.returncode == 0 and "5 questions in" in done.stdout, done.stderr
