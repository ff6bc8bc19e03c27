import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from mcpagent.errors import UserError
from mcpagent.llm.budget import ApiBudget, BudgetSpent, Price, at_most
from mcpagent.llm.client import RetryingClient, gather_or_cancel
from mcpagent.llm.contract import ChatFailed, ChatReply, ChatRequest, Finish
from mcpagent.llm.endpoint import Endpoint, EndpointSettings, json_of
from tests.llm.service import API_KEY, Answer, Received, Script, Service, error, says, service

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
QUESTION = ChatRequest(
    messages=({"role": "user", "content": "n?"},), max_output_tokens=50, schema=SCHEMA, temperature=0.5
)
GOOD = '{"n": 3}'


def use(
    script: Script,
    work: Callable[[RetryingClient], Awaitable[Any]],
    *,
    budget: Callable[[], ApiBudget] = ApiBudget,
    **options: Any,
) -> tuple[Any, Service, list[str]]:
    """What `work` returns, what the service received, and the notes."""
    notes: list[str] = []

    async def run(url: str) -> Any:
        paced = {"timeout_s": 20.0, **options}
        settings = EndpointSettings(model="m", base_url=url, api_key=API_KEY, **paced)
        async with aclosing(Endpoint(settings, on_note=notes.append)) as endpoint:
            return await work(RetryingClient(endpoint, budget=budget()))

    with service(script) as running:
        return asyncio.run(run(running.url)), running, notes


async def ask(client: RetryingClient) -> ChatReply:
    return await client.ask(QUESTION, key="q")


async def failing(client: RetryingClient) -> ChatFailed:
    with pytest.raises(ChatFailed) as failed:
        await ask(client)
    return failed.value


def test_the_schema_is_sent_and_the_answer_read() -> None:
    reply, running, _ = use(lambda received: says(received, GOOD), ask)
    assert (json_of(reply.text), reply.finish) == ({"n": 3}, Finish.STOP)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (100, 20)
    (received,) = running.received
    assert received.authorization == f"Bearer {API_KEY}"
    body = received.body
    sent = body["response_format"]["json_schema"]
    assert sent["schema"] == SCHEMA
    assert sent["strict"] is True


def test_a_refusal_and_a_cut_answer_are_told_from_an_answer() -> None:
    refused, _, _ = use(lambda received: says(received, "no", refuses=True), ask)
    cut, _, _ = use(lambda received: says(received, '{"n', is_cut=True), ask)
    assert (refused.finish, refused.text) == (Finish.REFUSED, "no")
    assert (cut.finish, json_of(cut.text)) == (Finish.LENGTH, None)


def test_an_answer_in_a_markdown_fence_is_read() -> None:
    reply, _, _ = use(lambda received: says(received, f"```json\n{GOOD}\n```"), ask)
    assert json_of(reply.text) == {"n": 3}


def test_structured_outputs_are_given_up_step_by_step_where_the_server_refuses_them() -> None:
    def script(received: Received) -> Answer:
        wanted = received.body.get("response_format", {}).get("type")
        return error(400, f"unsupported response_format {wanted}") if wanted else says(received, GOOD)

    async def twice(client: RetryingClient) -> list[ChatReply]:
        return [await client.ask(QUESTION, key=key) for key in "ab"]

    replies, running, notes = use(script, twice)
    assert [json_of(reply.text) for reply in replies] == [{"n": 3}] * 2
    formats = [r.body.get("response_format", {}).get("type") for r in running.received]
    assert formats == ["json_schema", "json_object", None, None]
    assert len(notes) == 2


def test_parameters_that_a_server_does_not_know_are_left_out_or_renamed() -> None:
    def script(received: Received) -> Answer:
        for name in ("temperature", "max_completion_tokens"):
            if name in received.body:
                return error(400, f"Unsupported parameter: '{name}'")
        return says(received, GOOD)

    _, running, notes = use(script, ask)
    last = running.received[-1].body
    assert last["max_tokens"] == 50
    assert last["response_format"]["type"] == "json_schema"
    assert len(running.received) == 3
    assert len(notes) == 2


def test_a_request_that_can_never_be_answered_is_not_repeated_for_ever() -> None:
    failure, running, _ = use(lambda received: error(400, "too long"), failing)
    assert failure.reason == "bad_request"
    assert len(running.received) == 3  # one for each way to ask for JSON


def test_what_the_server_asks_to_wait_is_waited() -> None:
    def script(received: Received) -> Answer:
        if received.number == 1:
            return error(429, "slow down", Retry_After="1")
        return says(received, GOOD)

    _, running, _ = use(script, ask)
    (first, _), (second, _) = running.log
    assert second - first >= 0.99  # a bound from below: load can only lengthen it


def test_a_429_holds_back_the_other_requests_too() -> None:
    def script(received: Received) -> Answer:
        if received.key == "a" and received.number == 1:
            return error(429, "slow down", retry_after_ms="700")
        return says(received, GOOD)

    async def work(client: RetryingClient) -> None:
        await asyncio.gather(*(client.ask(QUESTION, key=key) for key in "ab"))

    _, running, _ = use(script, work, max_in_flight=1)
    times = [time for time, _ in running.log]
    assert running.received[0].key == "a"
    assert min(times[1:]) - times[0] >= 0.69


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (error(429, "storm", retry_after_ms="1"), "rate_limited"),
        (error(500, "oh", retry_after_ms="1"), "server_error"),
        (Answer(hangs=True), "timed_out"),
        (Answer(breaks=True), "connection"),
        (Answer(body=b"<html>gateway</html>"), "bad_body"),
        (Answer(body={"choices": []}), "bad_body"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failure_that_may_pass_is_tried_again_and_then_has_a_reason(answer: Answer, reason: str) -> None:
    patience = {"timeout_s": 0.5} if answer.hangs else {}  # what answers may take its time to
    failure, running, _ = use(lambda _: answer, failing, attempts=2, **patience)
    assert failure.reason == reason
    assert [r.key for r in running.received] == ["q", "q"]


def test_a_wait_that_nobody_would_sit_through_is_not_begun() -> None:
    failure, running, _ = use(lambda _: error(429, "tomorrow", Retry_After="86400"), failing)
    assert failure.reason == "rate_limited"
    assert len(running.received) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(401, f"bad key {API_KEY}"), "refuses the key"),
        (error(404, "no such model"), "no model 'm'"),
        (error(429, "You exceeded your quota", code="insufficient_quota"), "no quota left"),
    ],
    ids=["key", "model", "quota"],
)
def test_what_every_request_would_meet_is_the_users_to_fix(answer: Answer, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        use(lambda _: answer, ask)
    assert refused.value.remedy
    assert API_KEY not in str(refused.value)


def test_the_number_of_requests_in_flight_is_bounded() -> None:
    full = threading.Barrier(3, timeout=20)  # three requests must be open at once for any to be answered

    def script(received: Received) -> Answer:
        full.wait()
        return says(received, GOOD)

    async def work(client: RetryingClient) -> None:
        await asyncio.gather(*(client.ask(QUESTION, key=str(n)) for n in range(12)))

    _, running, _ = use(script, work, max_in_flight=3)
    assert running.most_at_once == 3


async def until_spent(client: RetryingClient) -> list[str]:
    outcomes = await asyncio.gather(
        *(client.ask(QUESTION, key=str(n)) for n in range(40)), return_exceptions=True
    )
    return [outcome.cap if isinstance(outcome, BudgetSpent) else "answered" for outcome in outcomes]


def test_the_cap_of_requests_holds_under_concurrency_and_counts_retries() -> None:
    def script(received: Received) -> Answer:
        is_refused = received.key in {"0", "1"} and received.number == 1
        return error(500, "oh", retry_after_ms="1") if is_refused else says(received, GOOD)

    outcomes, running, _ = use(
        script, until_spent, budget=lambda: ApiBudget(max_requests=7), max_in_flight=16
    )
    assert len(running.received) == 7
    assert outcomes.count("answered") == 5
    assert outcomes.count("max_requests") == 35


def test_the_cap_of_cost_is_never_passed_and_what_was_reserved_in_vain_is_given_back() -> None:
    price = Price(input=1.0, output=10.0)
    bound = price.of(at_most(QUESTION))  # dollars
    used = (100 * 1.0 + 20 * 10.0) / 1e6
    cap = bound + 3.5 * used  # after four answers too little is left for the worst case of a fifth
    budgets: list[ApiBudget] = []

    def budget() -> ApiBudget:
        budgets.append(ApiBudget(price=price, max_cost=cap))
        return budgets[0]

    outcomes, running, _ = use(lambda r: says(r, GOOD), until_spent, budget=budget, max_in_flight=16)
    assert outcomes.count("answered") == len(running.received) == 4
    assert budgets[0].cost == pytest.approx(4 * used)  # 4 * used < cap: the bound is above used


def test_requests_of_unknown_cost_count_as_their_worst_case() -> None:
    price = Price(input=1.0, output=10.0)
    budgets = [ApiBudget(price=price)]
    use(lambda r: says(r, GOOD, is_metered=False), ask, budget=lambda: budgets[0])
    assert budgets[0].cost == pytest.approx(price.of(at_most(QUESTION)))
    assert budgets[0].uncertain == 1


def test_a_cost_cap_without_a_price_is_refused() -> None:
    with pytest.raises(UserError, match=r"api\.max_cost"):
        ApiBudget(max_cost=1.0)


def test_the_first_error_ends_the_other_requests_before_it_is_raised() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    async def refused() -> None:
        await asyncio.sleep(0)
        raise UserError("no such model")

    async def both() -> None:
        try:
            await gather_or_cancel([endless(), refused()])
        finally:
            assert ended == ["endless"]

    with pytest.raises(UserError, match="no such model"):
        asyncio.run(both())
