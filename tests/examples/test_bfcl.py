"""Tasks of BFCL become records, on a package of the same form with one small backend of our own."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mcpagent
from examples.bfcl.package import Backend, BfclPackage, json_schema, tool_of
from examples.bfcl.server import build_bfcl_server, build_function_server
from examples.bfcl.single_turn import SERVER, question
from examples.bfcl.tasks import CallSyntaxError, drawn, parse_call, tasks, write_dataset
from mcpagent.config.loader import load_train_config
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason
from mcpagent.env.episode import Episode
from mcpagent.errors import UserError
from mcpagent.policy.scripted import call_text
from mcpagent.reward.validate import task_problems
from mcpagent.storage.datasets import read_tasks, task_record
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer, load_servers
from tests.house import ROOT

_BACKEND = """
class TicketAPI:
    def _load_scenario(self, scenario, long_context=False):
        self.open = list(scenario.get("open", []))
        self.notes = {}
        self._reads = 0

    def close_ticket(self, ticket_id, reason="done"):
        self.open.remove(ticket_id)
        return {"closed": ticket_id, "reason": reason}

    def tag(self, ticket_id, tags):
        self.notes[ticket_id] = tags
        return {"tags": tags}

    def add_tag(self, ticket_id, tag):
        self.notes[ticket_id].append(tag)
        return {"tags": self.notes[ticket_id]}

    def list_open(self):
        self._reads += 1
        return self.open
"""
_TICKET = {"type": "integer", "description": "Which."}
_DOCS = {
    "close_ticket": ({"ticket_id": _TICKET, "reason": {"type": "string"}}, ["ticket_id"]),
    "tag": (
        {"ticket_id": _TICKET, "tags": {"type": "tuple", "items": {"type": "any"}}},
        ["ticket_id", "tags"],
    ),
    "add_tag": ({"ticket_id": _TICKET, "tag": {"type": "string"}}, ["ticket_id", "tag"]),
    "list_open": ({}, []),
}
_ROW = {
    "id": "multi_turn_base_0",
    "question": [
        [{"role": "user", "content": "Close ticket 1 and tag ticket 2."}],
        [{"role": "user", "content": "What is open? Tag ticket 2 as late, too."}],
    ],
    "initial_config": {"TicketAPI": {"open": [1, 2, 3]}},
    "involved_classes": ["TicketAPI"],
}
_ANSWER = [["close_ticket(1)", "tag(2, tags=['new'])"], ["list_open()", "add_tag(ticket_id=2, tag='late')"]]
_MISSING = {
    **_ROW,
    "id": "multi_turn_miss_func_0",
    "question": [[{"role": "user", "content": "Close ticket 1."}], []],
    "missed_function": {"1": ["close_ticket", "list_open"]},
}
_MISSING_ANSWER = [["list_open()"], ["close_ticket(1)"]]

_AREA = {
    "name": "shapes.area",
    "description": "The area of a rectangle.\nIn its unit.",
    "parameters": {
        "type": "dict",
        "properties": {
            "sides": {"type": "tuple", "items": {"type": "float"}},
            "unit": {"type": "string"},
            "style": {"type": "dict", "properties": {"fill": {"type": "any"}, "scale": {"type": "float"}}},
        },
        "required": ["sides"],
    },
}
_SINGLE = {
    "id": "parallel_0",
    "question": [[{"role": "user", "content": "The areas of 2 by 3 and of 4 by 5, please."}]],
    "function": [_AREA],
}
_SINGLE_ANSWER = [
    {"shapes.area": {"sides": [[2, 3], [3, 2]], "unit": ["", "m2"]}},
    {"shapes.area": {"sides": [[4, 5]], "style": [{"fill": ["red", ""], "scale": [1, 2]}, ""]}},
]
_OTHER_AREA = {**_AREA, "description": "The area of a circle."}
_IRRELEVANT = {
    "id": "irrelevance_0",
    "question": [[{"role": "user", "content": "Who painted it?"}]],
    "function": [_AREA],
}

Calls = list[list[tuple[str, dict[str, object]]]]
_GOLD: Calls = [
    [("close_ticket", {"ticket_id": 1}), ("tag", {"ticket_id": 2, "tags": ["new"]})],
    [("list_open", {}), ("add_tag", {"ticket_id": 2, "tag": "late"})],
]


@pytest.fixture
def package(tmp_path: Path) -> Iterator[BfclPackage]:
    root = tmp_path / "copy"
    data, code = root / "bfcl_eval" / "data", root / "bfcl_eval/eval_checker/multi_turn_eval/func_source_code"
    for folder in (data / "multi_turn_func_doc", data / "possible_answer", code):
        folder.mkdir(parents=True)
    (code / "ticket_api.py").write_text(_BACKEND)
    docs = [
        {
            "name": name,
            "description": f"Tickets. Tool description: {name} a ticket.",
            "parameters": {"type": "dict", "properties": properties, "required": required},
        }
        for name, (properties, required) in _DOCS.items()
    ]
    (data / "multi_turn_func_doc" / "ticket_api.json").write_text("\n".join(map(json.dumps, docs)))
    for category, row, answer in (("base", _ROW, _ANSWER), ("miss_func", _MISSING, _MISSING_ANSWER)):
        name = f"BFCL_v4_multi_turn_{category}.json"
        (data / name).write_text(json.dumps(row))
        right = {"id": row["id"], "ground_truth": answer}
        (data / "possible_answer" / name).write_text(json.dumps(right))
    rows = [{**_SINGLE, "id": f"parallel_{n}"} for n in range(4)] + [
        {**_SINGLE, "id": "parallel_4", "function": [_OTHER_AREA]}
    ]
    answers = [{"id": row["id"], "ground_truth": _SINGLE_ANSWER} for row in rows]
    for name, lines in (
        ("BFCL_v4_parallel.json", rows),
        ("possible_answer/BFCL_v4_parallel.json", answers),
        ("BFCL_v4_irrelevance.json", [_IRRELEVANT]),
    ):
        (data / name).write_text("\n".join(map(json.dumps, lines)))
    path, loaded = list(sys.path), set(sys.modules)
    yield BfclPackage(root)
    sys.path[:] = path
    for name in set(sys.modules) - loaded:
        if name.partition(".")[0] == "bfcl_eval":
            del sys.modules[name]


def test_a_task_has_its_turns_its_plan_by_keyword_and_its_servers_state(package: BfclPackage) -> None:
    task = _task(package)
    assert task_problems(task) == []
    assert [(s.user_turn, s.tool, s.params) for s in task.truth.tool_sequence] == [
        (turn, tool, arguments) for turn, calls in enumerate(_GOLD) for tool, arguments in calls
    ]
    assert task.prompt[1].content == "Close ticket 1 and tag ticket 2."
    assert task.truth.user_turns == ("What is open? Tag ticket 2 as late, too.",)
    assert task.truth.setup["TicketAPI"][0].arguments == {"scenario": {"open": [1, 2, 3]}}
    assert task.offered_tools == tuple(f"TicketAPI.{name}" for name in _DOCS)
    assert "add_tag: add_tag a ticket." in task.prompt[0].content


def test_the_types_of_a_tool_list_are_those_of_json_schema(package: BfclPackage) -> None:
    schema = next(tool["input_schema"] for tool in package.tools("TicketAPI") if tool["name"] == "tag")
    assert schema["type"] == "object"
    assert schema["properties"]["tags"] == {"type": "array", "items": {}}
    assert schema["properties"]["ticket_id"] == {**_TICKET, "type": "integer"}


@pytest.mark.parametrize(
    ("turns", "success"),
    [
        (_GOLD, 1.0),
        ([[_GOLD[0][1], _GOLD[0][0]], _GOLD[1]], 1.0),
        ([_GOLD[0], [("no_such_tool", {}), *_GOLD[1]]], 1.0),
        ([[], []], 0.0),
        ([_GOLD[0][:1], _GOLD[1]], 0.0),
        ([_GOLD[0], _GOLD[1][1:]], 0.0),
        ([_GOLD[0], [("close_ticket", {"ticket_id": 3}), *_GOLD[1]]], 0.0),
        # At the end all is done, but it was not yet after the first user turn.
        ([_GOLD[0][:1], [_GOLD[0][1], *_GOLD[1]]], 0.0),
    ],
    ids=["gold", "swapped", "hallucinated", "silent", "no write", "no read", "other write", "late"],
)
async def test_an_episode_over_mcp_succeeds_as_bfcl_would_have_it(
    package: BfclPackage, turns: Calls, success: float
) -> None:
    task = _task(package)
    server = InProcessServer(
        name="TicketAPI", server=build_bfcl_server(package, "TicketAPI"), isolation="episode"
    )
    async with ToolPool([server]) as pool:
        episode = Episode(task, pool, episode_id="e")
        await episode.start()
        for calls in turns:
            for name, arguments in calls:
                await episode.step(call_text(name, arguments))
            await episode.step("Done.")
        terms = await episode.grade()
        await episode.close()
        assert terms[0].value == success


def test_a_function_that_is_missing_at_first_comes_with_the_user_turn_that_adds_it(
    package: BfclPackage,
) -> None:
    (task,) = tasks(package, "miss_func")
    assert task_problems(task) == []
    # What the right calls need before is not missing, whatever BFCL says.
    assert task.offered_tools == ("TicketAPI.tag", "TicketAPI.add_tag", "TicketAPI.list_open")
    assert task.truth.tools_added == {1: ("TicketAPI.close_ticket",)}
    assert "close_ticket" not in task.prompt[0].content
    assert "updated some more functions" in task.truth.user_turns[0]
    assert Task.model_validate_json(json.dumps(task_record(task))) == task


def test_the_state_is_what_the_class_shows_and_a_failure_is_a_result_in_its_words(
    package: BfclPackage,
) -> None:
    backend = Backend(package, "TicketAPI")
    backend.load({"open": [1, 2]})
    before = backend.state_digest()
    assert backend.call("list_open", {}).text == "[1, 2]"
    assert backend.state_digest() == before  # a private counter is no state
    failed = backend.call("close_ticket", {"ticket_id": 7})
    assert (failed.text, failed.is_error) == ("Error during execution: list.remove(x): x not in list", True)
    assert backend.call("close_ticket", {"ticket_id": 1.0}).text == '{"closed": 1.0, "reason": "done"}'
    assert backend.state() == {"open": [2], "notes": {}}
    whole = backend.state_digest()
    backend.load({"open": [2.0]})
    assert backend.state_digest() == whole  # as Python compares numbers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("close_ticket(1", "is not Python"),
        ("close_ticket(1) + 1", "is not one call"),
        ("fly(1)", "calls no tool of its task"),
        ("close_ticket(ticket)", "malformed node"),
        ("close_ticket(1, 'a', 2)", "too many positional arguments"),
    ],
)
def test_an_answer_that_cannot_be_read_is_refused_with_the_reason(
    package: BfclPackage, text: str, says: str
) -> None:
    owner = package.backend_class("TicketAPI")
    with pytest.raises(CallSyntaxError) as raised:
        parse_call(text, {"close_ticket": owner})
    assert says in str(raised.value)


def test_a_folder_without_the_package_is_refused_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        BfclPackage(tmp_path)
    assert "pip download" in str(raised.value)


def test_tasks_servers_and_settings_fit_together(package: BfclPackage, tmp_path: Path) -> None:
    data, settings = write_dataset(package, tmp_path / "out", categories=["base", "miss_func"])
    assert list(read_tasks(data)) == [_task(package), *tasks(package, "miss_func")]
    config = load_train_config([settings]).config
    assert config.tools.servers is not None
    servers = load_servers(Path(config.tools.servers)).servers
    isolation = {name: section.isolation for name, section in config.tools.per_server.items()}
    assert isolation == {server.name: "episode" for server in servers}


def test_a_question_is_a_record_of_one_turn_with_its_functions_and_all_that_is_right() -> None:
    task = question(_SINGLE, _SINGLE_ANSWER, "parallel")
    assert task_problems(task) == []
    assert task.truth.max_turns == 1
    assert task.offered_tools == (f"{SERVER}.shapes.area",)
    assert task.prompt[0].content.endswith("\nshapes.area: The area of a rectangle.")
    assert task.prompt[1].content == "The areas of 2 by 3 and of 4 by 5, please."
    first, second = task.truth.tool_sequence
    assert (first.params, first.parallel_group) == ({"sides": [2, 3], "unit": "m2"}, second.parallel_group)
    assert first.match == {"sides": {"any_of": [[3, 2]]}, "unit": {"optional": True}}
    # An object is given by field: two values of `scale`, with `fill` or without.
    styles = [second.params["style"], *second.match["style"]["any_of"]]
    assert styles == [{"fill": "red", "scale": s} for s in (1, 2)] + [{"scale": s} for s in (1, 2)]


def test_the_types_of_a_function_are_those_of_json_schema_at_any_depth() -> None:
    assert json_schema(_AREA["parameters"], tool="shapes.area") == {
        "type": "object",
        "properties": {
            "sides": {"type": "array", "items": {"type": "number"}},
            "unit": {"type": "string"},
            "style": {"type": "object", "properties": {"fill": {}, "scale": {"type": "number"}}},
        },
        "required": ["sides"],
    }


@pytest.mark.parametrize(
    ("row", "action", "stop_reason", "success"),
    [
        (_SINGLE, [[2, 3], [4, 5]], StopReason.MAX_TURNS, 1.0),
        (_SINGLE, [[4, 5], [3, 2.0]], StopReason.MAX_TURNS, 1.0),
        (_SINGLE, [[2, 3]], StopReason.MAX_TURNS, 0.0),
        (_SINGLE, [[2, 3], [4, 6]], StopReason.MAX_TURNS, 0.0),
        (_SINGLE, "6 and 20.", StopReason.ANSWERED, 0.0),
        (_IRRELEVANT, "No function tells that.", StopReason.ANSWERED, 1.0),
        (_IRRELEVANT, [[2, 3]], StopReason.MAX_TURNS, 0.0),
    ],
)
async def test_one_turn_with_its_calls_or_none_is_the_episode(
    row: dict[str, object], action: str | list[list[float]], stop_reason: StopReason, success: float
) -> None:
    category = str(row["id"]).partition("_")[0]
    task = question(row, _SINGLE_ANSWER, category)
    server = InProcessServer(name=SERVER, server=build_function_server([tool_of(_AREA)]))
    async with ToolPool([server]) as pool:
        episode = Episode(task, pool, episode_id="e")
        await episode.start()
        calls = action if isinstance(action, list) else []
        text = "\n".join(call_text("shapes.area", {"sides": sides}) for sides in calls)
        await episode.step(text or str(action))
        assert episode.stop_reason is stop_reason
        assert (await episode.grade())[0].value == success
        await episode.close()


def test_questions_are_drawn_by_a_seed_and_never_two_meanings_of_one_function(package: BfclPackage) -> None:
    def ids(max_tasks: int | None, seed: int) -> list[str]:
        rows = drawn(package, ["parallel", "irrelevance"], max_tasks, seed=seed)
        assert len({str(row["function"]) for of in rows.values() for row in of}) == 1
        return [row["id"] for row in rows["parallel"]]

    assert ids(2, 0) == ids(2, 0)
    drawings = {seed: ids(None, seed) for seed in range(20)}
    assert {len(names) for names in drawings.values()} == {1, 4}  # the one other meaning, or all of the first
    assert len({tuple(ids(2, seed)) for seed in range(20)}) > 3


def test_questions_their_server_and_settings_fit_together(package: BfclPackage, tmp_path: Path) -> None:
    data, settings = write_dataset(package, tmp_path / "out", categories=["irrelevance"], max_tasks=1)
    assert list(read_tasks(data)) == [question(_IRRELEVANT, [], "irrelevance")]
    config = load_train_config([settings]).config
    assert (config.rollout.max_steps_per_episode, config.tools.servers is not None) == (1, True)
    (server,) = load_servers(Path(str(config.tools.servers))).servers
    assert server.name == SERVER
    assert json.loads((tmp_path / "out" / "functions.json").read_text()) == [tool_of(_AREA)]


def _task(package: BfclPackage) -> Task:
    (task,) = tasks(package, "base")
    return task


def test_the_example_uses_nothing_but_the_names_of_the_python_api() -> None:
    """The names are those that `mcpagent` itself exports."""
    files = list((ROOT / "examples" / "bfcl").rglob("*.py"))
    assert len(files) > 3
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mcpagent"):
                assert node.module == "mcpagent", file
                assert {alias.name for alias in node.names} <= {*dir(mcpagent), "evaluate"}, file
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("mcpagent") for alias in node.names), file
