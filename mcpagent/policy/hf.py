"""`HFPolicy`: the `Policy` of a transformers model, on a compute thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

import torch

from mcpagent.core.trajectory import Completion, PolicySpan
from mcpagent.policy.attention import prepare_attention
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.hf_engine import Engine, Finished


@dataclass(eq=False)
class _Batch:
    requests: Sequence[CompletionRequest]
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]

    def __post_init__(self) -> None:
        self.places = {r.episode_id: i for i, r in enumerate(self.requests)}
        self.completions: list[Completion | None] = [None] * len(self.requests)


@dataclass(eq=False)
class _Control:
    """Work on the engine between two steps; returns the turns that it ended."""

    run: Callable[[], Sequence[Finished]]
    failed: Callable[[BaseException], None]


class HFPolicy:
    """Samples from a causal LM of transformers.

    `complete` may be called from any event loop, also many times at once: requests join the running batch.
    One `complete` of many requests is admitted as one block in its order, which deterministic runs rely on.
    """

    def __init__(
        self,
        model: Any,
        *,
        decode: Callable[[Sequence[int]], str],
        stop_ids: frozenset[int],
        max_context: int,
        slots: int = 256,
        threads: int = 1,
    ) -> None:
        self._decode = decode
        self._threads = threads
        self.version = 0
        self._failure: BaseException | None = None
        model.eval()
        prepare_attention(model)
        self._engine = Engine(
            decoder=model.get_decoder(),
            head=model.get_output_embeddings(),
            stop_ids=stop_ids,
            max_context=max_context,
            slots=slots,
            device=model.device,
            dtype=model.dtype,
        )
        self._inbox: SimpleQueue[_Batch | _Control] = SimpleQueue()
        self._lock = Lock()  # between asking and failing: nobody asks a thread that has ended
        self._thread = Thread(target=self._serve, name="mcpagent-policy", daemon=True)
        self._thread.start()

    @property
    def sampled_tokens(self) -> int:
        return self._engine.sampled_tokens

    @property
    def prefilled_tokens(self) -> int:
        return self._engine.prefilled_tokens

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request, in order."""
        if not requests:
            return []
        loop = asyncio.get_running_loop()
        result: asyncio.Future[list[Completion]] = loop.create_future()

        def settle(action: Callable[[Any], None], value: Any) -> None:
            # A closed loop means that whoever asked is gone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: None if result.done() else action(value))

        self._ask(
            _Batch(
                tuple(requests),
                lambda completions: settle(result.set_result, completions),
                lambda error: settle(result.set_exception, error),
            )
        )
        return await result

    async def release(self, episode_id: str) -> None:
        """Free the episode's slot, in order with what was asked before. A turn that is still being sampled
        ends where it is."""
        self._ask(_Control(lambda: self._engine.release(episode_id), lambda _: None))

    def on_weights_changed(self) -> None:
        """Count a new policy version and drop every cached key. Call between batches, from any thread."""
        done: Future[None] = Future()

        def reset() -> Sequence[Finished]:
            try:
                self._engine.reset()
            except RuntimeError as error:
                done.set_exception(error)  # the caller's mistake; the turns go on
            else:
                done.set_result(None)
            return ()

        self._ask(_Control(reset, done.set_exception))
        done.result()
        self.version += 1

    def close(self) -> None:
        """Stop the compute thread. Turns that are being sampled, and whoever asks later, get an error."""

        def stop() -> Sequence[Finished]:
            raise RuntimeError("the policy was closed")

        self._ask(_Control(stop, lambda _: None))
        self._thread.join()

    def _ask(self, item: _Batch | _Control) -> None:
        with self._lock:
            if self._failure is None:
                self._inbox.put(item)
                return
        item.failed(self._failure)

    def _serve(self) -> None:
        # The number of OpenMP threads belongs to the calling thread.
        torch.set_num_threads(self._threads)
        open_batches: list[_Batch] = []
        while True:
            try:
                item = self._inbox.get(block=not self._engine.has_work)
            except Empty:
                item = None
            try:
                for end in self._advance(item, open_batches):
                    self._deliver(end, open_batches)
            except Exception as error:  # noqa: BLE001 - thread boundary: every waiter must learn of it
                self._fail(error, open_batches)
                return

    def _advance(self, item: _Batch | _Control | None, open_batches: list[_Batch]) -> Sequence[Finished]:
        if item is None:
            return self._engine.step()
        if isinstance(item, _Control):
            return item.run()
        open_batches.append(item)
        return self._engine.admit(item.requests)

    def _fail(self, error: BaseException, open_batches: list[_Batch]) -> None:
        """Whoever waits, and whoever asks from now on, gets the error instead of silence."""
        with self._lock:
            self._failure = error
        waiting: list[_Batch | _Control] = [*open_batches]
        while not self._inbox.empty():
            waiting.append(self._inbox.get())
        for item in waiting:
            item.failed(error)

    def _deliver(self, end: Finished, open_batches: list[_Batch]) -> None:
        batch = next(b for b in open_batches if end.request.episode_id in b.places)
        batch.completions[batch.places.pop(end.request.episode_id)] = self._completion(end)
        if not batch.places:
            open_batches.remove(batch)
            batch.done(batch.completions)

    def _completion(self, end: Finished) -> Completion:
        return Completion(
            text=self._decode(end.token_ids),
            finish_reason=end.reason,
            token_ids=end.token_ids,
            logprobs=end.logprobs,
            policy_versions=(PolicySpan(version=self.version, start=0, end=len(end.token_ids)),),
        )
