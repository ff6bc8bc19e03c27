"""`mcpagent data restate`: datasets made before questions stated the form of their answer."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.answer_line import (
    ASKED_BEFORE,
    ASKS_FOR_LINE,
    STATED_TYPES,
    right_message,
    states_form,
    without_form,
)
from mcpagent.core.tasks import Task
from mcpagent.reward.answer.verdict import Verdict, verdict_on
from mcpagent.reward.validate import lacks_form, task_problems
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.synth.datasets.restate import RestateReport, restated_tasks
from tests.running import mcpagent

# A check of each type, as datasets had them before.
CHECKS: dict[str, dict[str, Any]] = {
    "number": {"value": 12.5, "unit": "EUR"},
    "date": {"value": "2026-05-05T09:34", "precision": "minute"},
    "name": {"value": "Wave of Kerguelen"},
    "set": {"value": ["K-1", "K-2"]},
    "list": {"value": ["low; dry", "high"]},
    "pairs": {"value": {"Ada": 3, "Bo": 4}},
    "choice": {"value": "up", "options": ["up", "down"]},
    "yes_no": {"value": True},
}


def record(number: int, *, system: str | None, info: dict[str, Any] | None = None, **truth: Any) -> Task:
    prompt = [{"role": "user", "content": "What does it say?"}]
    if system is not None:
        prompt.insert(0, {"role": "system", "content": system})
    plan = [{"step": 1, "server": "s", "tool": "t", "params": {}}]
    return Task.model_validate(
        {
            "prompt": prompt,
            "reward_spec": {
                "ground_truth": {"task_id": f"t{number}", "tool_sequence": plan, "note": "kept", **truth}
            },
            "extra_info": info or {},
        }
    )


def restated(tmp_path: Path, *tasks: Task) -> tuple[list[Task], RestateReport]:
    write_jsonl(tmp_path / "old.jsonl", tasks)
    report = RestateReport()
    return list(restated_tasks(tmp_path / "old.jsonl", report)), report


def system_of(task: Task) -> str:
    return task.prompt[0].content


@pytest.mark.parametrize("system", [*ASKED_BEFORE, None])
@pytest.mark.parametrize("later", [(), ("I mean Ada.",)])
def test_every_type_gets_the_sentence_and_a_right_line_is_read_as_right(
    system: str | None, later: tuple[str, ...], tmp_path: Path
) -> None:
    assert CHECKS.keys() == STATED_TYPES
    message = system and f"Use these tools.\n{system}"
    more: dict[str, Any] = {"answer_line": True} if system else {}
    more |= {"user_turns": later} if later else {}
    old = [
        record(n, system=message, final_answer={"type": kind, **check}, **more)
        for n, (kind, check) in enumerate(CHECKS.items())
    ]
    new, report = restated(tmp_path, *old)
    assert report.counts == {"restated" if system else "line_added": len(CHECKS)} and not report.left
    assert {system_of(task) for task in new} == {
        f"Use these tools.\n{ASKS_FOR_LINE}" if system else ASKS_FOR_LINE
    }
    for before, task in zip(old, new, strict=True):
        check = task.truth.final_answer
        assert check and check == before.truth.final_answer and states_form(task) and not lacks_form(task)
        asked = (task.prompt[-1].content, *task.truth.user_turns)
        assert tuple(map(without_form, asked)) == ("What does it say?", *later)
        assert [without_form(text) != text for text in asked] == [False] * len(later) + [True]
        assert task.truth.model_dump()["note"] == "kept" and task_problems(task) == []
        message = right_message(task, {})
        assert message and verdict_on(check, message, {}, on_line=True) is Verdict.RIGHT
    again, report = restated(tmp_path, *new)
    assert again == new and report.counts == {"unchanged": len(new)}


@pytest.mark.parametrize("value", ["cannot", "asks", "replies"])
@pytest.mark.parametrize("generator", ["rules", "explore", "llm", "of others"])
def test_a_refusal_becomes_the_answer_none_and_ours_forbids_no_call(
    value: str, generator: str, tmp_path: Path
) -> None:
    check = {"type": "abstention", "value": value, "about": ["which"], "without": ["7"]}
    truth = {"final_answer": check, "abstain": True, "tool_sequence": [], "answer_line": True}
    old = record(0, system=ASKED_BEFORE[1], info={"generator": generator}, **truth)
    (task,), report = restated(tmp_path, old)
    assert report.counts == {"refusals": 1}
    assert task.truth.final_answer is not None
    assert task.truth.final_answer.model_dump(exclude_unset=True) == {"type": "none", "form": "name"}
    assert task.truth.abstain is (generator == "of others") and task.truth.is_refusal
    assert right_message(task, {}) == "Answer: none" and system_of(task) == ASKS_FOR_LINE


def test_the_question_of_an_old_refusal_asks_for_the_form_of_what_was_withheld(tmp_path: Path) -> None:
    forms = {
        "a number": [12.5],
        "the name as the tools write it": ["Ada"],
        "the names, separated": ["A", "B"],
    }
    checks = [{"type": "abstention", "value": "cannot", "without": values} for values in forms.values()]
    old = [record(n, system=ASKED_BEFORE[0], final_answer=c, answer_line=True) for n, c in enumerate(checks)]
    new, _ = restated(tmp_path, *old)
    for form, task in zip(forms, new, strict=True):
        assert f'\nEnd with "Answer: " and {form}' in task.prompt[-1].content


def test_what_cannot_be_stated_is_left_and_counted_with_the_first_reason(tmp_path: Path) -> None:
    bad: list[dict[str, Any]] = [
        {"type": "choice", "value": "a;b", "options": ["a;b", "c"]},
        {"type": "name", "value": "two\nlines"},
        {"type": "name", "value": "none"},
        {"type": "set", "value": []},
        {"type": "list", "value": [1, "a"]},
        {"type": "number", "value": 0.123456789},
        {"type": "regex", "value": "a+"},
        {"type": "must_include", "value": ["a", "b"]},
    ]
    old = [record(n, system="Help.", final_answer=check) for n, check in enumerate(bad)]
    old.append(record(len(bad), system="Help."))  # nothing of what it answers is checked
    new, report = restated(tmp_path, *old)
    assert new == old and report.counts == {"left": len(old)}
    assert {kind: left["records"] for kind, left in report.left.items()} == {
        **dict.fromkeys(("choice", "set", "list", "number", "regex", "must_include", "none"), 1),
        "name": 2,
    }
    assert report.left["name"]["first"] == f"{tmp_path / 'old.jsonl'}:2"
    assert "word it without" in report.left["choice"]["reason"]


def test_a_task_of_ours_without_an_answer_gets_the_same_system_message(tmp_path: Path) -> None:
    old = record(0, system="Help.", info={"generator": "rules"}, reference_answer="Done.")
    (task,), report = restated(tmp_path, old)
    assert report.counts == {"line_added": 1} and system_of(task) == f"Help.\n{ASKS_FOR_LINE}"
    assert task.prompt[-1] == old.prompt[-1] and right_message(task, {}) == "Answer: Done."


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz", ".json.zst"])
def test_the_command_writes_any_form_and_replaces_only_when_told(suffix: str, tmp_path: Path) -> None:
    source, out = tmp_path / f"old{suffix}", tmp_path / "made" / f"new{suffix}"
    answer = {"answer_line": True, "final_answer": {"type": "name", "value": "Ada"}}
    write_jsonl(source, [record(0, system=ASKED_BEFORE[0], **answer)])
    (tmp_path / "servers.yaml").write_text("tools: {builtin: [fmp]}\n")
    done = mcpagent("data", "restate", source, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["records"], document["path"], document["left"]) == (1, str(out), {})
    assert document["by_outcome"] == {
        **dict.fromkeys(("line_added", "refusals", "unchanged", "left"), 0),
        "restated": 1,
    }
    (task,) = read_tasks(out)
    assert states_form(task) and (out.parent / "servers.yaml").is_file()
    written = zlib.crc32(out.read_bytes())
    refused = mcpagent("data", "restate", source, "--out", out)
    assert (refused.returncode, "--overwrite" in refused.stderr) == (2, True)
    assert zlib.crc32(out.read_bytes()) == written
    assert mcpagent("data", "restate", source, "--out", out, "--overwrite").returncode == 0


def test_a_damaged_record_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    source, out = tmp_path / "old.jsonl", tmp_path / "made" / "new.jsonl"
    write_jsonl(source, [record(0, system="Help.", final_answer={"type": "yes_no", "value": True})])
    source.write_text(source.read_text() + '{"prompt": []}\n')
    done = mcpagent("data", "restate", source, "--out", out)
    assert done.returncode == 2 and "old.jsonl:2" in done.stderr, done.stderr
    assert not out.exists() and not list(out.parent.glob("*"))
