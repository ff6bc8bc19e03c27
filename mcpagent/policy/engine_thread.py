"""A batching engine on a compute thread of its own: many callers, any event loop, one running batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, Protocol, TypeVar

from mcpagent.core.trajectory import Completion, FinishReason, PolicySpan
from mcpagent.policy.contract import CompletionRequest

T = TypeVar("T")


@dataclass(frozen=True)
class Finished:
    """The end of one turn."""

    request: CompletionRequest
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: FinishReason


class BatchEngine(Protocol):
    """Continuous batching, single-threaded; every method returns the turns that it ended."""

    @property
    def has_work(self) -> bool:
        """A turn is being sampled."""
        ...

    def admit(self, requests: Sequence[CompletionRequest]) -> Sequence[Finished]:
        """Let requests join the running batch: each has room in the context, and is the only one of its
        episode."""
        ...

    def step(self) -> Sequence[Finished]:
        """One token for every turn that is being sampled."""
        ...

    def release(self, episode_id: str) -> Sequence[Finished]:
        """Forget an episode; a turn of it that is still being sampled ends."""
        ...


E = TypeVar("E", bound=BatchEngine)


@dataclass(eq=False)
class _Batch:
    requests: Sequence[CompletionRequest]
    completed: Future[Any] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.completed.set_running_or_notify_cancel()  # whoever gives up waiting does not cancel it
        self.places = {r.episode_id: i for i, r in enumerate(self.requests)}
        self.completions: list[Completion | None] = [None] * len(self.requests)


@dataclass(eq=False)
class _Control:
    """Work on the engine between two steps; returns the turns that it ended."""

    run: Callable[[], Sequence[Finished]]
    completed: Future[Any] = field(default_factory=Future)


class EnginePolicy(Generic[E]):
    """A `Policy` over one engine. `complete` may be called from any event loop, also many times at once; one
    `complete` of many requests is admitted as one block in its order, which deterministic runs rely on.
    `version` is that of the weights that sample."""

    def __init__(
        self,
        make: Callable[[], E],
        *,
        decode: Callable[[Sequence[int]], str],
        max_context: int,
        version: int = 0,
    ) -> None:
        """`make` builds the engine on the thread itself; what it raises is raised here. A request that fills
        `max_context` ends at once."""
        self._decode, self._max_context = decode, max_context
        self.version = version
        self._failure: BaseException | None = None
        self._inbox: SimpleQueue[_Batch | _Control] = SimpleQueue()
        self._lock = Lock()  # between asking and failing: no caller asks a thread that has ended
        made: Future[E] = Future()
        self._thread = Thread(target=self._serve, args=(make, made), name="mcpagent-policy", daemon=True)
        self._thread.start()
        self.engine = made.result()

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request, in order."""
        if not requests:
            return []
        batch = _Batch(tuple(requests))
        self._ask(batch)
        return await asyncio.wrap_future(batch.completed)

    async def release(self, episode_id: str) -> None:
        """Forget the episode, in order with what was asked before. A turn of it that is still being sampled
        ends: with the tokens so far from transformers, without any from vLLM."""
        self._ask(_Control(lambda: self.engine.release(episode_id)))

    def call(self, run: Callable[[], T]) -> T:
        """`run()` between two steps, on the engine's thread. What it raises is the caller's: turns go on."""

        def work() -> Sequence[Finished]:
            try:
                control.completed.set_result(run())
            except Exception as error:  # noqa: BLE001 - thread boundary: it is raised in the caller
                control.completed.set_exception(error)
            return ()

        control = _Control(work)
        self._ask(control)
        return control.completed.result()

    def change_weights(self, write: Callable[[], object]) -> None:
        """Run `write`, which changes the weights, on the engine's thread, and count a new version. Raises
        RuntimeError while a turn is being sampled, which would be of two versions."""

        def change() -> None:
            if self.engine.has_work:
                raise RuntimeError("the weights cannot change while a turn is being sampled")
            write()
            self.version += 1

        self.call(change)

    def close(self) -> None:
        """Stop the thread. Turns that are being sampled, and whoever asks later, get an error."""

        def stop() -> Sequence[Finished]:
            raise RuntimeError("the policy was closed")

        self._ask(_Control(stop))
        self._thread.join()

    def _ask(self, item: _Batch | _Control) -> None:
        with self._lock:
            if self._failure is None:
                self._inbox.put(item)
                return
        item.completed.set_exception(self._failure)

    def _serve(self, make: Callable[[], E], made: Future[E]) -> None:
        try:
            engine = make()
        except BaseException as error:  # noqa: BLE001 - thread boundary: it is raised in the caller
            made.set_exception(error)
            return
        made.set_result(engine)
        open_batches: list[_Batch] = []
        while True:
            try:
                item = self._inbox.get(block=not engine.has_work)
            except Empty:
                item = None
            try:
                for end in self._advance(engine, item, open_batches):
                    self._deliver(end, open_batches)
            except Exception as error:  # noqa: BLE001 - thread boundary: every waiter must learn of it
                self._fail(error, open_batches)
                return

    def _advance(
        self, engine: E, item: _Batch | _Control | None, open_batches: list[_Batch]
    ) -> Sequence[Finished]:
        if item is None:
            return engine.step()
        if isinstance(item, _Control):
            return item.run()
        being_sampled = {episode_id for batch in open_batches for episode_id in batch.places}
        open_batches.append(item)
        joining: list[CompletionRequest] = []
        ends: list[Finished] = []
        for request in item.requests:
            if request.episode_id in being_sampled:
                raise RuntimeError(f"episode {request.episode_id} already has a turn that is being sampled")
            being_sampled.add(request.episode_id)
            if len(request.token_ids) >= self._max_context:
                ends.append(Finished(request, (), (), FinishReason.OVERFLOW))
            else:
                joining.append(request)
        return [*ends, *engine.admit(joining)]

    def _fail(self, error: BaseException, open_batches: list[_Batch]) -> None:
        """Whoever waits, and whoever asks from now on, gets the error instead of silence."""
        with self._lock:
            self._failure = error
        waiting: list[_Batch | _Control] = [*open_batches]
        while not self._inbox.empty():
            waiting.append(self._inbox.get())
        for item in waiting:
            item.completed.set_exception(error)

    def _deliver(self, end: Finished, open_batches: list[_Batch]) -> None:
        batch = next(b for b in open_batches if end.request.episode_id in b.places)
        batch.completions[batch.places.pop(end.request.episode_id)] = self._completion(end)
        if not batch.places:
            open_batches.remove(batch)
            batch.completed.set_result(batch.completions)

    def _completion(self, end: Finished) -> Completion:
        return Completion(
            text=self._decode(end.token_ids),
            finish_reason=end.reason,
            token_ids=end.token_ids,
            logprobs=end.logprobs,
            policy_versions=(PolicySpan(version=self.version, start=0, end=len(end.token_ids)),),
        )
