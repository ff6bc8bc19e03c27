"""Turn barriers: what makes a run repeatable to the token.

Matrix products differ in the last bits with the number of rows, so tokens depend on which requests share a
batch, and that on races between tools. Here the policy is asked only when every open episode waits for it,
with the requests in a fixed order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mcpagent.core.trajectory import Completion
from mcpagent.policy.contract import CompletionRequest, Policy


class TurnBarrier:
    """A policy in front of a policy. `enter` and `leave` count the open episodes; one event loop only."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._open = 0
        self._order: dict[str, int] = {}
        self._waiting: dict[str, tuple[CompletionRequest, asyncio.Future[Completion]]] = {}
        self._flush: asyncio.Task[None] | None = None

    def enter(self, episode_id: str, *, rank: int) -> None:
        """An episode has opened; `rank` is its place in every batch."""
        self._open += 1
        self._order[episode_id] = rank

    async def leave(self, episode_id: str) -> None:
        """The episode is over and asks nothing more."""
        self._open -= 1
        del self._order[episode_id]
        self._flush_if_complete()

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Wait until every open episode has asked, then answer all of them from one batch."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Completion]] = []
        for request in requests:
            futures.append(loop.create_future())
            self._waiting[request.episode_id] = (request, futures[-1])
        self._flush_if_complete()
        return list(await asyncio.gather(*futures))

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)

    def _flush_if_complete(self) -> None:
        if self._waiting and len(self._waiting) == self._open:
            batch = sorted(self._waiting.values(), key=lambda item: self._order[item[0].episode_id])
            self._waiting = {}
            self._flush = asyncio.create_task(self._run(batch))

    async def _run(self, batch: list[tuple[CompletionRequest, asyncio.Future[Completion]]]) -> None:
        try:
            completions = await self._policy.complete([request for request, _ in batch])
        except BaseException as error:  # noqa: BLE001 - task boundary: each waiter gets the error
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), completion in zip(batch, completions, strict=True):
            if not future.done():
                future.set_result(completion)
