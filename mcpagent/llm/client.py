"""Asking until there is an answer: paced, within the budget, and again if that can help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from aiolimiter import AsyncLimiter

from mcpagent.config.environment import environment
from mcpagent.config.sections import ApiConfig
from mcpagent.core.values import backoff_s
from mcpagent.errors import UserError
from mcpagent.llm.budget import ApiBudget, at_most
from mcpagent.llm.contract import ChatFailed, ChatReply, ChatRequest, FailureReason, Usage
from mcpagent.llm.endpoint import Endpoint, EndpointSettings
from mcpagent.llm.journal import Journal

_T = TypeVar("_T")
_PASSING = {
    FailureReason.RATE_LIMITED,
    FailureReason.TIMED_OUT,
    FailureReason.SERVER_ERROR,
    FailureReason.CONNECTION,
    FailureReason.BAD_BODY,
}
_KEY = "OPENAI_API_KEY"
_PLACEHOLDER_KEY = "unused"  # the SDK insists on one; servers of one's own seldom do
_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 30.0
_MAX_WAIT_S = 120.0  # a longer one is not begun


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run coroutines at once and return what they return, in order. The first error ends the others, and is
    raised when they have ended: what they ask with is about to be closed."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RetryingClient:
    """A `ChatClient` that keeps to the settings of its endpoint. A failure that may pass is tried again after
    what the server asked to wait; a 429 holds every request back. The `journal` is told of every attempt
    before it is sent, and of its end before anything is made of it; what it has an answer to is not asked,
    and what got none is not asked again while it is open."""

    def __init__(self, endpoint: Endpoint, *, budget: ApiBudget, journal: Journal | None = None) -> None:
        self._endpoint = endpoint
        self._budget = budget
        self._journal = journal
        self._slots = asyncio.Semaphore(endpoint.settings.max_in_flight)
        # Evenly spaced: a bucket of a whole minute would let the first burst through and be refused.
        per_minute = endpoint.settings.per_minute
        self._pace = AsyncLimiter(1, 60.0 / per_minute) if per_minute else nullcontext()
        self._held_until = 0.0  # on the loop's clock

    async def ask(self, request: ChatRequest, *, key: str) -> ChatReply:
        """Ask until there is an answer. Raises ChatFailed, BudgetSpent and UserError."""
        journal = self._journal
        if journal is None:
            return await self._ask(request, key)
        key = f"{journal.prefix}:{key}"
        recorded = journal.answer(key)
        if recorded is not None:
            return recorded
        try:
            return await self._ask(request, key)
        except ChatFailed as failure:
            journal.gave_up(key, failure)
            raise

    async def _ask(self, request: ChatRequest, key: str) -> ChatReply:
        bound = at_most(request)
        failures = 0
        while True:
            try:
                return await self._attempt(request, key, bound)
            except ChatFailed as failure:
                if failure.reason is FailureReason.UNSUPPORTED:
                    continue  # finitely often: each time the client asks for less
                failures += 1
                if failure.reason not in _PASSING or failures == self._endpoint.settings.attempts:
                    raise
                await self._wait(failure, failures)

    async def _attempt(self, request: ChatRequest, key: str, bound: Usage) -> ChatReply:
        async with self._slots:
            await self._hold()
            async with self._pace:
                pass
            await self._budget.reserve(bound)
            usage: Usage | None = None  # whatever interrupts the request, it may have been billed
            try:
                if self._journal is not None:
                    self._journal.sent(key, bound)
                reply = await self._endpoint.send(request, key=key)
                if self._journal is not None:
                    self._journal.answered(key, reply)
                usage = reply.usage
                return reply
            except ChatFailed as failure:
                if self._journal is not None:
                    self._journal.failed(key, failure)
                usage = None if failure.may_be_billed else Usage()
                raise
            finally:
                await self._budget.settle(bound, usage)

    async def _wait(self, failure: ChatFailed, failures: int) -> None:
        pause_s = backoff_s(failures, first_s=_BACKOFF_S, max_s=_MAX_BACKOFF_S, asked_s=failure.retry_after_s)
        if pause_s > _MAX_WAIT_S:
            raise failure
        if failure.reason is FailureReason.RATE_LIMITED:
            until = asyncio.get_running_loop().time() + pause_s
            self._held_until = max(self._held_until, until)
        else:
            await asyncio.sleep(pause_s)

    async def _hold(self) -> None:
        loop = asyncio.get_running_loop()
        while (left_s := self._held_until - loop.time()) > 0:
            await asyncio.sleep(left_s)


@contextmanager
def open_client(
    model: str,
    api: ApiConfig,
    *,
    budget: ApiBudget,
    run: Callable[[Coroutine[Any, Any, None]], None],
    on_note: Callable[[str], None],
    journal: Journal | None = None,
) -> Iterator[RetryingClient]:
    """Yield a client of a Chat Completions API. `run` runs a coroutine on the loop on which it is asked.
    Raises UserError if the key is missing."""
    endpoint = Endpoint(endpoint_settings(model, api), on_note=on_note)
    try:
        yield RetryingClient(endpoint, budget=budget, journal=journal)
    finally:
        run(endpoint.aclose())


def endpoint_settings(model: str, api: ApiConfig) -> EndpointSettings:
    """Return where and how a model is asked. Raises UserError if the key is missing."""
    key = environment().get(_KEY, "")
    if not key and api.base_url is None:
        raise UserError(
            f"OpenAI's API needs a key, and {_KEY} is not set",
            where=_KEY,
            remedy=f"export {_KEY}=..., or put it into .env; --set api.base_url=URL names another server",
        )
    return EndpointSettings(
        model=model,
        base_url=api.base_url,
        api_key=key or _PLACEHOLDER_KEY,
        timeout_s=api.timeout_s,
        max_in_flight=api.max_in_flight,
        per_minute=api.calls_per_minute,
        attempts=api.attempts,
    )
