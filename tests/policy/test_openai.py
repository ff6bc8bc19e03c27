"""`OpenAIPolicy` against a service on a loopback socket: whole episodes over MCP tools, and misbehaviour."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpagent.core.trajectory import Completion, FinishReason, StopReason, Trajectory
from mcpagent.env.parsing import parse_action
from mcpagent.errors import EpisodeError
from mcpagent.llm.budget import ApiBudget, Price
from mcpagent.llm.client import RetryingClient
from mcpagent.llm.contract import ChatReply, ChatRequest, Finish
from mcpagent.llm.endpoint import Endpoint, EndpointSettings
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.openai import OpenAIPolicy
from mcpagent.policy.scripted import call_text
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from tests.env.world import READ_ONLY, make_task, scratch_pool
from tests.llm.service import API_KEY, Answer, Received, Script, error, says, service

T = TypeVar("T")
PATIENCE_S = 30.0


def ask(
    script: Script, use: Callable[[OpenAIPolicy], Coroutine[Any, Any, T]], **settings: Any
) -> tuple[T, list[Received]]:
    """`use` with a policy of the service that `script` runs, and what the service was asked."""

    async def run(url: str) -> T:
        paced = {"timeout_s": 20.0, "attempts": 3, **settings}
        at = EndpointSettings(model="m", base_url=url, api_key=API_KEY, **paced)
        async with (
            asyncio.timeout(PATIENCE_S),
            aclosing(Endpoint(at, on_note=lambda _: None)) as endpoint,
        ):
            price = Price(1.0, 10.0)
            client = RetryingClient(endpoint, budget=ApiBudget(price=price))
            return await use(OpenAIPolicy(client, price=price))

    with service(script) as running:
        return asyncio.run(run(running.url)), running.received


def one(**sampling: Any) -> CompletionRequest:
    return CompletionRequest(
        episode_id="e",
        sampling=Sampling(**{"max_new_tokens": 9, **sampling}),
        seed=2**62 + 5,
        messages=({"role": "user", "content": "Go."},),
    )


async def complete_once(policy: OpenAIPolicy) -> Completion:
    return (await policy.complete([one()]))[0]


def calls(
    received: Received, *made: tuple[str, str], text: str | None = None, finish: str = "tool_calls"
) -> Answer:
    """An answer with native calls (name, arguments as the model wrote them)."""
    answer = says(received, text or "")
    choice = answer.body["choices"][0]
    choice["finish_reason"] = finish
    choice["message"] |= {
        "content": text,
        "tool_calls": [
            {"id": f"id-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(made)
        ],
    }
    return answer


async def double(x: int) -> str:
    return f"twice is {2 * x}"


def play(
    script: Script, *, tasks: int = 1, tools: Sequence[Callable[..., Any]] = (double,), **settings: Any
) -> tuple[list[Trajectory], list[Received]]:
    """Episodes that may call `double`, which tells twice its number, or other `tools`."""

    async def use(policy: OpenAIPolicy) -> list[Trajectory]:
        async with scratch_pool(*((tool, READ_ONLY) for tool in tools)) as pool:
            wanted = [
                make_task(task_id=f"t{n}", success={"must_call_tool": "scratch.double"}) for n in range(tasks)
            ]
            return await collect(
                list(attempts(wanted, per_task=1, seed=0)),
                policy=policy,
                tools=pool,
                settings=AgentSettings(sampling=Sampling(max_new_tokens=50, temperature=0.5)),
                deterministic=False,
            )

    return ask(script, use, **settings)


def test_native_calls_are_made_and_their_results_go_back_under_their_ids() -> None:
    def script(received: Received) -> Answer:
        if len(received.messages) == 2:
            return calls(received, ("double", '{"x": 4}'), ("double", '{"x": 5}'), text="Let me see.")
        return says(received, "8 and 10")

    (trajectory,), received = play(script)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.final_answer == "8 and 10"
    assert [c.arguments for c in trajectory.turns[0].tool_calls] == [{"x": 4}, {"x": 5}]
    first, second = received
    assert first.body["tools"][0]["function"]["name"] == "double"
    assert (first.body["max_completion_tokens"], first.body["temperature"]) == (50, 0.5)
    assistant, *results = second.messages[2:]
    assert assistant["content"] == "Let me see."
    assert [c["id"] for c in assistant["tool_calls"]] == ["id-0", "id-1"]
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in results] == [
        ("tool", "id-0", "twice is 8"),
        ("tool", "id-1", "twice is 10"),
    ]


def test_an_api_that_takes_no_dots_gets_another_name_and_the_tool_is_called_by_its_own() -> None:
    """As OpenAI does: 400 for a name that it does not take."""

    def script(received: Received) -> Answer:
        sent = [tool["function"]["name"] for tool in received.body["tools"]]
        sent += [call["function"]["name"] for m in received.messages for call in m.get("tool_calls", ())]
        assert len(sent) >= 2
        if not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in sent):
            return error(400, "Invalid 'tools[0].function.name'")
        if len(received.messages) == 2:
            return calls(received, (sent[1], '{"x": 4}'), (sent[0], '{"x": 5}'))
        return says(received, "12 and 10")

    async def dotted(x: int) -> str:
        return f"twice is {2 * x}"

    async def long(x: int) -> str:
        return f"thrice is {3 * x}"

    dotted.__name__, long.__name__ = "math.twice/int", "t" * 128
    (trajectory,), received = play(script, tools=(dotted, long))
    results = [(r.tool, r.content) for r in trajectory.turns[0].tool_results]
    assert results == [("t" * 128, "thrice is 12"), ("math.twice/int", "twice is 10")]
    assert trajectory.final_answer == "12 and 10" and len(received) == 2


def test_each_step_says_what_it_used_and_cost() -> None:
    trajectories, _ = play(lambda received: says(received, "done"))
    (usage,) = (turn.completion.usage for turn in trajectories[0].turns)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (100, 20)
    assert usage.cost_usd == pytest.approx(0.0003)  # 100 in at 1 dollar a million, 20 out at 10


def test_broken_arguments_are_a_parse_failure_and_take_no_result_of_their_neighbour() -> None:
    def script(received: Received) -> Answer:
        if len(received.messages) == 2:
            return calls(received, ("double", '{"x": 4'), ("double", '{"x": 5}'))
        return says(received, "10")

    (trajectory,), received = play(script)
    assert [c.arguments for c in trajectory.turns[0].tool_calls] == [{"x": 5}]
    assert len(trajectory.turns[0].parse_failures) == 1
    answers = {m["tool_call_id"]: m["content"] for m in received[1].messages if m["role"] == "tool"}
    assert answers["id-1"] == "twice is 10"
    assert "not a tool call" in answers["id-0"]
    # Servers parse the arguments of their own history.
    sent = received[1].messages[2]["tool_calls"]
    assert [json.loads(c["function"]["arguments"]) for c in sent] == [{}, {"x": 5}]


def test_a_call_that_a_model_writes_as_text_is_made_too() -> None:
    def script(received: Received) -> Answer:
        text = '<tool_call>{"name": "double", "arguments": {"x": 3}}</tool_call>'
        return says(received, text if len(received.messages) == 2 else "6")

    (trajectory,), received = play(script)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert received[1].messages[3] == {
        "role": "user",
        "content": "<tool_response>\ntwice is 6\n</tool_response>",
    }


def test_an_outage_leaves_the_episode_unscored_and_its_siblings_are_played() -> None:
    def script(received: Received) -> Answer:
        is_down = "t1#0" in received.key
        return error(500, "down") if is_down else says(received, "no")

    trajectories, _ = play(script, tasks=3, attempts=2)
    assert [t.stop_reason for t in trajectories] == [
        StopReason.ANSWERED,
        StopReason.FAILED,
        StopReason.ANSWERED,
    ]
    assert [t.reward is None for t in trajectories] == [False, True, False]
    assert "500" in trajectories[1].errors[0]


def test_an_attempt_that_fails_is_repeated_and_one_that_keeps_failing_ends_the_episode() -> None:
    later = error(503, "later", retry_after="0")
    completion, received = ask(
        lambda received: later if received.number == 1 else says(received, "yes"), complete_once, attempts=2
    )
    assert completion.text == "yes"
    assert [r.number for r in received] == [1, 2]
    with pytest.raises(EpisodeError, match="no answer"):
        ask(lambda _: later, complete_once, attempts=2)


def test_the_key_is_in_no_trajectory_though_the_server_repeats_it() -> None:
    (trajectory,), _ = play(lambda received: says(received, f"your key is {API_KEY}"))
    assert API_KEY not in trajectory.model_dump_json()
    (trajectory,), _ = play(lambda _: error(500, f"bad {API_KEY}"), attempts=1)
    assert trajectory.errors and API_KEY not in trajectory.model_dump_json()


def test_how_a_reply_ended_is_kept() -> None:
    def ending(script: Script) -> tuple[str, FinishReason]:
        completion, _ = ask(script, complete_once)
        return completion.text, completion.finish_reason

    assert ending(lambda r: says(r, "half", is_cut=True)) == ("half", FinishReason.LENGTH)
    cut_call = ending(lambda r: calls(r, ("double", '{"x":'), finish="length"))
    assert cut_call[1] is FinishReason.LENGTH
    assert ending(lambda r: says(r, "I won't.", refuses=True)) == ("I won't.", FinishReason.STOP)
    too_long = error(
        400, "This model's maximum context length is 4096 tokens", code="context_length_exceeded"
    )
    assert ending(lambda _: too_long) == ("", FinishReason.OVERFLOW)


def test_the_seed_is_the_requests_and_fits_into_31_bits() -> None:
    _, first = ask(lambda r: says(r, "x"), complete_once)
    _, again = ask(lambda r: says(r, "x"), complete_once)
    assert first[0].body["seed"] == again[0].body["seed"] == (2**62 + 5) % (2**31 - 1)
    assert first[0].key != again[0].key  # a gateway that remembers keys must not answer for the other run


class _Replies:
    """A `ChatClient` that gives one reply."""

    def __init__(self, reply: ChatReply) -> None:
        self._reply = reply

    async def ask(self, request: ChatRequest, *, key: str) -> ChatReply:
        return self._reply


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_TAGS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "x", "arguments": {}}']
)
_TEXT = st.lists(st.text(max_size=8) | _TAGS, max_size=4).map("".join)
_ARGUMENTS = st.dictionaries(st.text(), _JSON, max_size=3).map(json.dumps) | _JSON.map(json.dumps) | _TEXT
_DEEP = st.integers(45, 55).map(lambda depth: '{"a":' * depth + "1" + "}" * depth)


@given(
    st.lists(
        st.tuples(st.sampled_from(["double", "a b", "", "<tool_call>"]), _ARGUMENTS | _DEEP), min_size=1
    ),
    _TEXT,
)
@example([("double", '{"<think>": null}'), ("double", '{"x": "</think><tool_call>"}'), ("double", "{}")], "")
def test_native_calls_read_back_as_they_were_whatever_stands_beside_and_in_them(
    made: list[tuple[str, str]], text: str
) -> None:
    native = tuple(
        {"id": f"id-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(made)
    )
    raw = {"choices": [{"finish_reason": "tool_calls"}]}
    reply = ChatReply(text=text, finish=Finish.TOOL_CALLS, usage=None, raw=raw, tool_calls=native)
    policy = OpenAIPolicy(_Replies(reply))
    completion = asyncio.run(policy.complete([one()]))[0]
    parsed = parse_action(completion.text)
    assert len(parsed.calls) + len(parsed.failures) == len(made)
    # What parsed are the readable ones, in order and unchanged.
    readable = [(name, _readable(name, arguments)) for name, arguments in made]
    expected = [(name.strip(), value) for name, value in readable if value is not None]
    assert [(c.tool, c.arguments) for c in parsed.calls] == expected


def _readable(name: str, arguments: str) -> dict[str, Any] | None:
    """What the plain JSON reader makes of the arguments, where the environment takes such a call at all."""
    try:
        value = json.loads(arguments.strip() or "{}")
        takes = isinstance(value, dict) and parse_action(call_text(name, value)).calls
    except ValueError:
        return None
    return value if takes else None
