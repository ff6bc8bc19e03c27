from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.env.parsing import parse_action
from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.policy.scripted import GoldPolicy, ScriptedPolicy, call_text, over_eager


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {**schema, "required": list(properties)}},
    }


QUOTE, NEWS = tool("quote", ticker="string"), tool("news", ticker="string")
SEND, SEARCH = tool("send", message="string"), tool("search", query="string")
TOOLS = (QUOTE, NEWS, SEND, SEARCH)
OFFERED = ["stocks.quote", "stocks.news", "chat.send", "web.search"]
QUOTE_STEP = {"step": 1, "server": "stocks", "tool": "quote", "params": {"ticker": "AAPL"}}
SEND_STEP = {"step": 2, "server": "chat", "tool": "send", "params": {"message": "now ${step1.close}"}}


def make_task(*, offered: Sequence[str] = OFFERED, **truth: Any) -> Task:
    return Task.model_validate(
        {
            "prompt": [{"role": "user", "content": "Go."}],
            "reward_spec": {"ground_truth": {"task_id": "a#b", **truth}},
            "extra_info": {"tools": list(offered)},
        }
    )


def played(
    policy: Policy,
    answers: Sequence[str],
    *,
    tools: Sequence[dict[str, Any]] = TOOLS,
    seed: int = 0,
    attempt: int = 0,
    every: str | None = None,
) -> list[str]:
    """The texts of one episode whose calls are answered with `answers`, or each with `every`; a string that
    starts with `user:` is a user message."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    texts: list[str] = []
    pending = list(answers)

    async def play() -> None:
        while True:
            request = CompletionRequest(
                episode_id=f"a#b#{attempt}",
                sampling=Sampling(),
                seed=seed + len(texts),
                messages=tuple(messages),
                tools=tools,
            )
            text = (await policy.complete([request]))[0].text
            texts.append(text)
            messages.append({"role": "assistant", "content": text})
            n_calls = len(parse_action(text).calls)
            if not n_calls and not pending:
                break
            for _ in range(max(1, n_calls)):
                content = every or pending.pop(0)
                role = "user" if content.startswith("user:") else "tool"
                messages.append({"role": role, "content": content})
        await policy.release(request.episode_id)

    asyncio.run(play())
    return texts


CLOSE = json.dumps({"ticker": "AAPL", "close": 187.2})


def test_a_call_is_written_in_hermes_form() -> None:
    assert call_text("quote", {"city": "Zürich"}) == (
        '<tool_call>\n{"name": "quote", "arguments": {"city": "Zürich"}}\n</tool_call>'
    )


def test_gold_resolves_references_from_the_messages_that_it_sees() -> None:
    task = make_task(tool_sequence=[QUOTE_STEP, SEND_STEP], reference_answer="Sent ${step1.close}.")
    assert played(GoldPolicy([task]), [CLOSE, '{"ok": true}']) == [
        call_text("quote", {"ticker": "AAPL"}),
        call_text("send", {"message": "now 187.2"}),
        "Sent 187.2.",
    ]


@pytest.mark.parametrize(
    ("shown", "reference", "said"),
    [
        ("harvest\nwinter-menu", "result[1]", "winter-menu"),
        ("harvest", "result[0]", "harvest"),
        ("417\n93", "result[0]", "417"),
        ("Sunny, 21 degrees", "result", "Sunny, 21 degrees"),
        ('{"close": 5}\n{"close": 7}', "result[1].close", "7"),
        ('{"close": 5}', "result[0].close", "5"),
        ("12.5", "result[0]", "12.5"),
    ],
)
def test_gold_reads_what_a_typed_tool_returns_as_it_is_shown(shown: str, reference: str, said: str) -> None:
    sent = {**SEND_STEP, "params": {"message": f"now ${{step1.{reference}}}"}}
    task = make_task(tool_sequence=[QUOTE_STEP, sent], reference_answer="Sent.")
    assert played(GoldPolicy([task]), [shown, '{"ok": true}'])[1] == call_text(
        "send", {"message": f"now {said}"}
    )


def test_gold_plays_each_user_turn_and_its_parallel_groups() -> None:
    task = make_task(
        tool_sequence=[
            {**QUOTE_STEP, "parallel_group": "g"},
            {**QUOTE_STEP, "step": 2, "params": {"ticker": "MSFT"}, "parallel_group": "g"},
            {**SEND_STEP, "step": 3, "user_turn": 1},
        ],
        user_turns=["user: send it"],
        final_answer={"type": "number", "value": "${step1.close - step2.close}"},
    )
    texts = played(GoldPolicy([task]), [CLOSE, '{"close": 87.2}', "user: send it", "{}"])
    assert texts == [
        call_text("quote", {"ticker": "AAPL"}) + "\n" + call_text("quote", {"ticker": "MSFT"}),
        "Done.",
        call_text("send", {"message": "now 187.2"}),
        "100.0",
    ]


@pytest.mark.parametrize(
    ("params", "question"),
    [
        ({"ticker": "AAPL"}, "Which ticker do you mean?"),
        ({"channel_id": "C101"}, "Which channel do you mean?"),
        ({"word": "Go"}, "What would you like to know?"),  # the question has it already
        ({}, "What would you like to know?"),
    ],
)
def test_gold_asks_where_the_user_has_not_yet_said_what_a_call_takes(
    params: dict[str, Any], question: str
) -> None:
    task = make_task(
        tool_sequence=[{**QUOTE_STEP, "params": params, "user_turn": 1}],
        user_turns=["user: that one"],
        quiet_turns=[0],
        reference_answer="It is ${step1.close}.",
    )
    texts = played(GoldPolicy([task]), ["user: that one", CLOSE])
    assert texts == [question, call_text("quote", params), "It is 187.2."]


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ({"abstain": True}, "Done."),
        ({"abstain": True, "reference_answer": "Hello!"}, "Hello!"),
        ({"final_answer": {"type": "string", "value": "yes"}}, "yes"),
        ({"final_answer": {"type": "must_include", "value": ["a", 5]}}, "a; 5"),
        ({"final_answer": {"type": "regex", "value": "x+"}}, "Done."),
        ({"reference_answer": "${step1.close}"}, "I could not find the answer."),
    ],
)
def test_gold_answers_in_the_form_of_the_check(truth: dict[str, Any], answer: str) -> None:
    assert played(GoldPolicy([make_task(**truth)]), []) == [answer]


def test_gold_uses_the_name_that_the_model_is_shown() -> None:
    task = make_task(tool_sequence=[QUOTE_STEP], reference_answer="x")
    collided = (tool("stocks__quote", ticker="string"), tool("other__quote", ticker="string"))
    assert "stocks__quote" in played(GoldPolicy([task]), [CLOSE], tools=collided)[0]


def test_stopping_early_answers_with_what_the_next_step_would_have_used() -> None:
    task = make_task(
        tool_sequence=[
            QUOTE_STEP,
            {**SEND_STEP, "params": {"message": "close ${text(step1.close)}"}},
            {"step": 3, "server": "web", "tool": "search", "params": {"query": "${step2.id}"}},
        ],
        reference_answer="full",
    )
    endings = set()
    for seed in range(12):
        answers = [CLOSE, '{"id": "m7"}'][: cut_after(task, seed)]
        texts = played(GoldPolicy([task], stop_early=1.0), answers, seed=seed)
        endings.add((len(texts) - 1, texts[-1]))
    assert endings == {(1, "The answer is 187.2."), (2, "The answer is m7.")}


def test_where_two_things_are_asked_for_stopping_early_answers_with_the_first() -> None:
    steps = [QUOTE_STEP | {"parallel_group": 1}, QUOTE_STEP | {"step": 2, "parallel_group": 1}]
    check = {"type": "must_include", "value": ["high", "low"]}
    task = make_task(tool_sequence=steps, final_answer=check, reference_answer="It is high and low.")
    texts = played(GoldPolicy([task], stop_early=1.0), ['{"close": 3, "note": "high"}'])
    assert texts[-1] == "The answer is high."


def test_the_flaw_of_an_episode_is_drawn_from_its_first_seed() -> None:
    task = make_task(tool_sequence=[QUOTE_STEP, SEND_STEP], reference_answer="full")
    policy = GoldPolicy([task], stop_early=0.5)
    lengths = [cut_after(task, seed, policy=policy, attempt=seed) for seed in range(400)]
    assert lengths == [
        cut_after(task, seed, policy=GoldPolicy([task], stop_early=0.5)) for seed in range(400)
    ]
    # binomial(400, 0.5): 4 standard deviations are 40
    assert 160 <= lengths.count(1) <= 240
    assert set(lengths) == {1, 2}


def cut_after(task: Task, seed: int, *, policy: GoldPolicy | None = None, attempt: int = 0) -> int:
    """After how many calls the policy stops, when every call gets a full answer."""
    policy = policy or GoldPolicy([task], stop_early=1.0)
    texts = played(policy, [], every='{"close": 1, "id": "m"}', seed=seed, attempt=attempt)
    return len(texts) - 1


def test_a_wrong_tool_is_a_sister_that_takes_the_same_arguments() -> None:
    task = make_task(tool_sequence=[QUOTE_STEP], reference_answer="The answer is 187.2.")
    texts = played(GoldPolicy([task], wrong_tool=1.0), ['{"ticker": "AAPL", "articles": 12, "note": "x"}'])
    assert texts == [call_text("news", {"ticker": "AAPL"}), "The answer is 12."]
    alone = make_task(
        tool_sequence=[QUOTE_STEP], offered=["stocks.quote", "web.search"], reference_answer="y"
    )
    assert played(GoldPolicy([alone], wrong_tool=1.0), [CLOSE]) == [
        call_text("quote", {"ticker": "AAPL"}),
        "y",
    ]


def test_an_episode_of_an_unknown_task_is_an_error() -> None:
    with pytest.raises(RunError, match="a#b#0"):
        played(GoldPolicy([]), [])


def test_a_script_plays_from_the_start_in_every_episode_and_does_not_run_on() -> None:
    policy = ScriptedPolicy([call_text("quote", {}), "5"])
    assert played(policy, ["{}"]) == played(policy, ["{}"]) == [call_text("quote", {}), "5"]
    with pytest.raises(RunError, match="2 steps"):
        played(policy, ["{}", "user: more"])
    echo = ScriptedPolicy(lambda request: f"{request.episode_id} {request.seed}")
    assert played(echo, [], seed=4) == ["a#b#0 4"]


def test_the_two_extremes() -> None:
    assert played(ScriptedPolicy(lambda _: ""), []) == [""]
    request = CompletionRequest(
        episode_id="x#0", sampling=Sampling(), tools=(tool("t", a="string", b="integer", c="array"),)
    )
    text = asyncio.run(ScriptedPolicy(over_eager).complete([request]))[0].text
    assert text == call_text("t", {"a": "x", "b": 1, "c": []})
    with pytest.raises(RunError, match="no tool"):
        over_eager(CompletionRequest(episode_id="x#0", sampling=Sampling()))


CALL = '{"name": "buy", "arguments": {}}'


@pytest.mark.parametrize(
    "answer",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"It is <tool_call>{CALL}</tool_call>, as said.",
        f"5 <tool_call>{CALL}",
        "5 </tool_call> 5",
        "<tool><buy>{}</buy></tool>",
        '{"tool": "buy", "arguments": {}}',
        ' \n[{"tool": "buy", "arguments": {}}]',
        'So:\n```json\n{"tool": "buy", "arguments": {}}\n```',
        "```tool_call\n" + CALL + "\n```",
        "<think>5",
        "no</think>5",
    ],
)
@pytest.mark.parametrize("comes_from", ["the dataset", "a server"])
def test_an_answer_that_spells_a_call_or_a_thought_is_played_as_text(answer: str, comes_from: str) -> None:
    plan = [{"step": 1, "server": "s", "tool": "look", "params": {}}]
    task = make_task(
        tool_sequence=plan,
        reference_answer=answer if comes_from == "the dataset" else "${step1.text}",
    )
    result = json.dumps({"text": answer})
    [message] = asyncio.run(
        GoldPolicy([task]).complete(
            [
                CompletionRequest(
                    episode_id=f"{task.id}#0",
                    messages=(
                        {"role": "user", "content": "What?"},
                        {"role": "assistant", "content": ""},
                        {"role": "tool", "content": result},
                    ),
                    tools=(),
                    seed=0,
                    sampling=Sampling(),
                )
            ]
        )
    )
    parsed = parse_action(message.text)
    assert (parsed.calls, parsed.failures, parsed.thinking) == ((), (), None)
    assert parsed.text == message.text.strip() != ""
    assert parse_action(answer) != parsed  # without the change it is one
