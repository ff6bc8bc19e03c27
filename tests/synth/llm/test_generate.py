import asyncio
import fcntl
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mcpagent.cli.main import load_app
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import RunError, UserError
from mcpagent.policy.scripted import GoldPolicy, ScriptedPolicy
from mcpagent.servers.provider import builtin_servers
from mcpagent.storage.datasets import read_tasks
from mcpagent.tools.pool import ToolPool
from tests.llm.service import Answer, Received, error, says, service
from tests.synth.llm.model import KINDS, Question, model, right_task
from tests.synth.llm.running import JOURNAL, answered, generate, invoke, journal, written
from tests.synth.running import play


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Received]]:
    """Two samples of each kind: the document, and what the model was asked."""
    out = tmp_path_factory.mktemp("made") / "out"
    with service(model) as running:
        options = ("--distractors", "5", "--set", "api.price_in=1", "--set", "api.price_out=10")
        options += ("--set", "api.timeout_s=6")  # two samples hang
        document = generate(running.url, out, "--n-samples", str(2 * KINDS), *options)
    return document, running.received


@pytest.fixture(scope="module")
def document(made: tuple[dict[str, Any], list[Received]]) -> dict[str, Any]:
    return made[0]


@pytest.fixture(scope="module")
def tasks(document: dict[str, Any]) -> list[Task]:
    return tasks_of(document)


def tasks_of(document: dict[str, Any]) -> list[Task]:
    return [task for path in document["paths"].values() for task in read_tasks(path)]


def test_every_sample_is_a_task_or_a_reject_with_a_reason(
    document: dict[str, Any], tasks: list[Task]
) -> None:
    assert document["finished"] == document["samples"] == 2 * KINDS
    assert document["records"] == len(tasks) == 2 * KINDS - sum(document["rejects"].values())
    stages = document["stages"]
    assert [stage["name"] for stage in stages] == [
        "generate",
        "format",
        "execute",
        "review",
        "solve",
        "distinct",
    ]
    assert stages[0]["in"] == 2 * KINDS
    for before, after in itertools.pairwise(stages):
        assert before["in"] - sum(before["rejects"].values()) == before["out"] == after["in"]
    assert stages[-1]["out"] == len(tasks)


def test_each_way_to_be_wrong_has_its_own_reason(document: dict[str, Any]) -> None:
    lasting = {"refused": 2, "truncated": 2, "rate_limited": 2, "not_solved": 2}
    assert lasting.items() <= document["rejects"].items()
    assert {"ungrounded", "not_the_answer"} <= set(document["rejects"])
    assert set(document["rejects"]) <= {*lasting, "ungrounded", "not_the_answer", "duplicate", "connection"}
    mended = {"malformed", "schema", "unknown_tool", "invalid_arguments", "bad_reference", "step_failed"}
    assert mended <= set(document["attempts"]["reasons"])
    assert document["repaired"] >= 4


def test_the_reason_of_a_failure_goes_back_to_the_model(made: tuple[Any, list[Received]]) -> None:
    _, received = made
    drafts = [(r, q) for r in received if (q := Question.of(r.key)).stage == "draft"]
    repairs = [r for r, q in drafts if q.sample % KINDS == 12 and q.attempt == 1]
    assert repairs
    for repair in repairs:
        system, asked, before, told = repair.messages
        assert [m["role"] for m in (system, asked, before, told)] == ["system", "user", "assistant", "user"]
        assert '"nowhere' in json.loads(before["content"])["steps"][0]["arguments"]
    assert any("step_failed" in r.messages[3]["content"] for r in repairs)


def test_answers_are_what_the_tools_found_and_provenance_says_who_wrote_the_task(
    document: dict[str, Any], tasks: list[Task]
) -> None:
    for task in tasks:
        assert "${" not in repr([task.truth.final_answer, task.truth.evidence, task.truth.state])
        info = task.extra_info
        assert (info["model"], info["generator"]) == ("scripted", "llm")
        assert info["prompts_sha256"] == document["prompts_sha256"]
        shown = info["verdicts"]
        assert (shown["gold_reward"], shown["replays"], shown["no_op"]) == (1.0, 1, "silence fails")
        assert shown["minimal"] == ("every step is needed" if task.truth.tool_sequence else "no steps")
        gold = {f"{step.server}.{step.tool}" for step in task.truth.tool_sequence}
        assert task.offered_tools is not None
        assert gold < set(task.offered_tools)
        assert len(task.offered_tools) == len(gold) + 5
        lines = len(task.prompt[0].content.splitlines())
        assert lines == 1 + len(task.offered_tools) + task.truth.answer_line


def test_the_classes_have_their_shares_and_an_answer_counts_if_it_was_seen(
    document: dict[str, Any], tasks: list[Task]
) -> None:
    assert len(document["by_class"]) >= 8
    chains = [task for task in tasks if task.extra_info["class"] == "chain"]
    assert chains
    for task in chains:
        # The price, about the ticker that the first call has found, or about the channel that was asked for.
        (fact,) = task.truth.evidence
        channel = task.truth.tool_sequence[0].params["channel_id"]
        assert fact.value == task.truth.final_answer.value if task.truth.final_answer else None
        ((ticker, other),) = fact.about
        assert (len(ticker), other) == (4, channel)
        assert not task.truth.success.must_call
    sums = [task for task in tasks if task.extra_info["class"] == "sum"]
    for task in sums:
        price, close = task.truth.evidence
        assert task.truth.final_answer is not None
        total = price.value + close.value
        assert task.truth.final_answer.value == pytest.approx(total)
        assert price.instead == close.instead == (task.truth.final_answer.value,)


def test_the_meter_counts_every_request_and_what_it_cost(made: tuple[dict[str, Any], list[Received]]) -> None:
    document, received = made
    spend = document["spend"]
    assert spend["requests"] == len(received)
    # Answers report 100 tokens in and 20 out; the rest were refused, or are uncertain and cost their bound.
    answers = spend["input_tokens"] // 100
    assert spend["output_tokens"] == 20 * answers
    assert spend["cost_usd"] > answers * (100 * 1 + 20 * 10) / 1e6
    assert spend["uncertain_requests"] == 4  # two timeouts and two bodies that were no answer


def test_the_tasks_can_be_played_gold_wins_and_silence_loses(tasks: list[Task]) -> None:
    async def played() -> list[list[Trajectory]]:
        policies = (GoldPolicy(tasks), ScriptedPolicy(lambda _: ""))
        async with ToolPool(builtin_servers()) as pool:
            return [await play(pool, tasks, policy) for policy in policies]

    gold, silent = asyncio.run(played())
    assert [t.reward for t in gold] == [1.0] * len(tasks)
    assert not any(t.is_success for t in silent)


def test_a_cap_of_requests_is_never_passed_and_a_higher_one_goes_on_from_there(tmp_path: Path) -> None:
    with service(model) as unbroken:
        generate(unbroken.url, tmp_path / "whole", "--n-samples", "14")
    out = tmp_path / "out"
    with service(model) as running:
        common = ("--n-samples", "14", "--set", "api.max_in_flight=16")
        first = generate(running.url, out, *common, "--set", "api.max_requests=30")
        assert len(running.log) == first["spend"]["requests"] == 30
        assert first["stopped_by"] == ["max_requests"]
        assert first["unfinished"] > 0
        assert first["finished"] + first["unfinished"] == 14
        kept = set(answered(out))
        second = generate(running.url, out, *common, "--overwrite")
    assert second["unfinished"] == 0
    assert written(out) == written(tmp_path / "whole")
    assert not kept & {received.key for received in running.received[30:]}


def test_a_cap_of_cost_is_never_passed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # The bound of one request is below 80,000 bytes in and 200 tokens out, $0.13 at these prices.
    prices = ("--set", "api.price_in=1.5", "--set", "api.price_out=10", "--max-output-tokens", "200")
    with service(model) as running:
        options = ("--n-samples", "40", "--set", "api.max_in_flight=16", "--set", "api.max_cost=0.15")
        options += ("--set", "api.timeout_s=1.5")
        document = generate(running.url, out, *options, *prices)
    assert document["stopped_by"] == ["max_cost"]
    answers = sum(line["kind"] == "answered" for line in journal(out))
    assert answers * (100 * 1.5 + 20 * 10) / 1e6 <= document["spend"]["cost_usd"] <= 0.15
    assert document["unfinished"] > 0
    assert len(running.log) > 10


def test_the_environment_sets_what_the_options_do_not(tmp_path: Path) -> None:
    env = {
        "N_SAMPLES": "9",
        "OPENAI_MODEL": "from-env",
        "MAX_TOOLS": "2",
        "MAX_TURNS": "5",
        "DOMAINS": "desks, prices",
    }
    with service(model) as running:
        document = generate(running.url, tmp_path / "out", "--n-samples", "4", **env)
    tasks = tasks_of(document)
    assert tasks
    assert document["samples"] == 4  # the option wins
    assert document["model"] == "scripted"
    assert {task.truth.max_turns for task in tasks} == {5}
    assert {task.truth.limits.max_tools for task in tasks} == {2}
    assert {task.extra_info["domain"] for task in tasks} <= {"desks", "prices"}


def test_a_server_without_structured_outputs_is_asked_without_and_a_note_says_so(tmp_path: Path) -> None:
    def script(received: Received) -> Answer:
        if "response_format" in received.body:
            return error(400, "response_format is not supported")
        return model(received)

    with service(script) as running:
        done = invoke(running.url, tmp_path / "out", "--n-samples", "3", "--set", "api.max_in_flight=1")
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["records"] == 3
    assert "the server refuses json_schema answers" in done.stderr
    assert sum("response_format" in r.body for r in running.received) == 2


def greeting(received: Received) -> Answer:
    """A task whose plan posts a message, whatever is asked for."""
    question = Question.of(received.key)
    if question.stage == "review":
        return model(received)
    task = right_task("changes something", "C101")
    way = {"steps": task["steps"], "value": ""}
    return says(received, json.dumps(task if question.stage == "draft" else way))


EVERY_CLASS = ("--n-samples", "22", "--repairs", "0")  # two of them are to change something


def test_a_plan_that_writes_is_a_task_whose_gold_is_the_call(tmp_path: Path) -> None:
    with service(greeting) as running:
        document = generate(running.url, tmp_path / "out", *EVERY_CLASS)
    assert document["records"] == 1
    assert document["by_tool"] == {"slack.send_slack_message": 1}
    assert document["rejects"]["duplicate"] == 1


def test_tools_of_the_users_own_that_change_something_are_called_only_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "mcpagent.cli.main", "serve", "slack", "--limited"]
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"slack": {"command": command[0], "args": command[1:]}}}))
    options = (*EVERY_CLASS, "--servers", str(config), "--set", "tools.isolation.slack=episode")
    with service(greeting) as running:
        refused = invoke(running.url, tmp_path / "no", *options)
        asked = running.received[0]
        allowed = generate(running.url, tmp_path / "yes", *options, "--allow-writes")
    assert isinstance(refused.exception, RunError)
    assert "unknown_tool" in refused.stderr
    assert "tool send_slack_message" not in asked.messages[1]["content"]
    assert "- slack.send_slack_message: " in asked.messages[1]["content"]  # whoever solves the task has it
    assert "get_slack_channel_history" in asked.messages[1]["content"]
    assert allowed["by_tool"] == {"slack.send_slack_message": 1}


def test_servers_of_ones_own_are_asked_about_by_a_model_if_there_is_an_endpoint(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    args = ["-m", "mcpagent.cli.main", "serve", "polygon"]
    config.write_text(json.dumps({"mcpServers": {"polygon": {"command": sys.executable, "args": args}}}))

    def command(out: str, *more: str) -> list[str]:
        counts = ["--train", "4", "--validation", "0", "--heldout", "2"]
        return ["--servers", str(config), "--out", str(tmp_path / out), "--json", *counts, *more]

    with service(model) as running:
        env = {"OPENAI_API_KEY": None, "OPENAI_BASE_URL": running.url}
        explored = CliRunner().invoke(load_app("gen-data"), command("explored", "--explore"), env=env)
        assert explored.exit_code == 0, explored.exception
        assert not running.log
        asked = CliRunner().invoke(load_app("gen-data"), command("asked", "--n-samples", "1"), env=env)
        assert running.log
    assert "there is an endpoint: a model writes the tasks" in asked.stderr


def test_a_journal_of_other_settings_or_in_use_or_no_journal_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with service(model) as running:
        generate(running.url, out, "--n-samples", "1")
        asked = len(running.log)
        changed = invoke(running.url, out, "--n-samples", "1", "--overwrite", "--repairs", "1")
        with (out / JOURNAL).open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            used = invoke(running.url, out, "--n-samples", "1", "--overwrite")
        other = tmp_path / "other"
        other.mkdir()
        (other / JOURNAL).write_text("my notes\n")
        notes = invoke(running.url, other, "--n-samples", "1", "--overwrite")
        assert len(running.log) == asked
    for done, words in (
        (changed, "repairs was 2, now 1"),
        (used, "another process"),
        (notes, "not a line of a"),
    ):
        assert isinstance(done.exception, UserError)
        assert words in str(done.exception)
        assert done.exception.remedy
    assert (other / JOURNAL).read_text() == "my notes\n"


def test_what_the_service_failed_to_answer_stays_a_reject_until_it_is_to_be_asked_again(
    tmp_path: Path,
) -> None:
    is_down = [True]

    def script(received: Received) -> Answer:
        question = Question.of(received.key)
        if is_down[0] and question.sample == 2:
            return error(503, "maintenance", retry_after_ms="1")
        if question.stage != "draft":
            return model(received)
        channel = f"C1{['01', '04', '05'][question.sample]}"
        return says(received, json.dumps(right_task(received.messages[1]["content"], channel)))

    out, options = tmp_path / "out", ("--n-samples", "3", "--overwrite")
    with service(script) as running:
        first = generate(running.url, out, *options)
        is_down[0] = False
        asked = len(running.log)
        same = generate(running.url, out, *options)
        assert len(running.log) == asked
        mended = generate(running.url, out, *options, "--retry-failed")
    assert first["rejects"] == same["rejects"] == {"server_error": 1}
    assert first["failed_requests"]["reasons"] == {
        "server_error": sum(r.number > 0 and Question.of(r.key).sample == 2 for r in running.received[:asked])
    }
    assert (same["records"], mended["records"]) == (2, 3)


def test_a_key_that_is_refused_in_the_middle_ends_the_run_and_keeps_what_was_answered(tmp_path: Path) -> None:
    def script(received: Received) -> Answer:
        return error(401, "expired") if Question.of(received.key).sample == 5 else model(received)

    out = tmp_path / "out"
    with service(script) as running:
        done = invoke(running.url, out, "--n-samples", "12", "--set", "api.max_in_flight=1")
        asked = len(running.log)
    assert isinstance(done.exception, UserError)
    assert "OPENAI_API_KEY" in (done.exception.remedy or "")
    assert len(answered(out)) == asked - 1 > 10
    with service(model) as running:
        document = generate(running.url, out, "--n-samples", "12")
    assert document["spend"]["answers_from_journal"] == asked - 1


@pytest.mark.parametrize(
    ("wrong", "reason", "words"),
    [
        (error(500, "boom", retry_after_ms="1"), "server_error", ("500: boom", "wait until")),
        (Answer(hangs=True), "timed_out", ("within 2 s", "api.timeout_s")),
        (
            error(429, "too fast", retry_after_ms="1"),
            "rate_limited",
            ("429: too fast", "api.calls_per_minute"),
        ),
    ],
)
def test_a_cap_that_only_failures_reached_is_an_error_with_their_causes(
    wrong: Answer, reason: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    some = ("--n-samples", "4", "--set", "api.max_in_flight=1", "--set", "api.max_requests=2")
    some += ("--set", f"api.timeout_s={2 if wrong.hangs else 60}")
    with service(lambda _: wrong) as running:
        done = invoke(running.url, tmp_path / "out", *some)
        again = invoke(running.url, tmp_path / "out", *some)  # counts what the journal has, and asks nothing
        assert len(running.log) == 2
    for result in (done, again):
        assert isinstance(result.exception, RunError)
        said = f"{result.exception}"
        assert "no sample was finished in 2 requests" in said and f"{reason} 2" in said
        for word in (*words, "api.max_requests", "--retry-failed"):
            assert word in said
        document = result.exception.as_json()["error"]
        assert document["failed_requests"]["reasons"] == {reason: 2}
        assert (document["finished"], document["unfinished"]) == (0, 4)
        assert f"{reason} 2" in result.stderr  # beside the yield table


def test_samples_that_are_lost_to_the_service_are_named_beside_the_tasks_that_were_made(
    tmp_path: Path,
) -> None:
    def script(received: Received) -> Answer:
        is_limited = Question.of(received.key).sample == 1
        return error(429, "too fast", retry_after_ms="1") if is_limited else model(received)

    with service(script) as running:
        done = invoke(running.url, tmp_path / "out", "--n-samples", "2")
    assert done.exit_code == 0 and json.loads(done.stdout)["records"] == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("given up: ")]
    assert "rate_limited 1" in said and "calls_per_minute" in said and "--retry-failed --overwrite" in said


def test_a_service_that_always_limits_is_answered_with_a_slower_pace(tmp_path: Path) -> None:
    with service(lambda _: error(429, "too fast", retry_after_ms="1")) as running:
        done = invoke(running.url, tmp_path / "out", "--n-samples", "2")
        asked = len(running.log)
    assert isinstance(done.exception, RunError)
    said = str(done.exception)
    assert "none of 2 finished samples" in said and "calls_per_minute" in said and "--retry-failed" in said
    document = done.exception.as_json()["error"]
    assert document["rejects"] == {"rate_limited": 2}
    assert document["failed_requests"]["reasons"] == {"rate_limited": asked}


def test_a_run_without_a_single_task_fails_and_says_why(tmp_path: Path) -> None:
    with service(lambda received: says(received, "no", refuses=True)) as running:
        done = invoke(running.url, tmp_path / "out", "--n-samples", "2")
    assert isinstance(done.exception, RunError)
    assert "refused" in done.stderr
    assert not written(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "env", "words"),
    [
        (("--set", "api.max_cost=1"), {}, "api.price_in"),
        (("--set", "api.price_in=1"), {}, "api.price_out"),
        ((), {"N_SAMPLES": "many"}, "N_SAMPLES is 'many'"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_sent(
    tmp_path: Path, options: tuple[str, ...], env: dict[str, str], words: str
) -> None:
    with service(model) as running:
        done = invoke(running.url, tmp_path / "out", *options, **env)
        assert not running.log
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)
