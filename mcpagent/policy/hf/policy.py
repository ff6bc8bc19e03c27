"""`HFPolicy`: the `Policy` of a transformers model, on a compute thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mcpagent.core.trajectory import Completion
from mcpagent.models.logits import output_head
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import EngineThread
from mcpagent.policy.hf.plain_engine import PlainEngine, why_no_slots
from mcpagent.policy.hf.slot_engine import SlotEngine
from mcpagent.policy.sampling import TokenSampler, sample_rows

log = logging.getLogger(__name__)


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
        sample: TokenSampler = sample_rows,
    ) -> None:
        """`sample` chooses the tokens; a benchmark may force them."""
        model.eval()
        reason = why_no_slots(model)
        if reason is not None:
            log.warning("sampling each episode by itself, which is slower: %s", reason)
        common: dict[str, Any] = {
            "decoder": model.get_decoder(),
            "head": output_head(model),
            "stop_ids": stop_ids,
            "max_context": max_context,
            "device": model.device,
            "sample": sample,
        }

        def make() -> SlotEngine | PlainEngine:
            # The number of OpenMP threads belongs to the calling thread.
            torch.set_num_threads(threads)
            if reason is not None:
                return PlainEngine(**common)
            return SlotEngine(slots=slots, dtype=model.dtype, **common)

        self._thread = EngineThread(make, decode=decode)

    @property
    def version(self) -> int:
        return self._thread.version

    @property
    def sampled_tokens(self) -> int:
        return self._thread.engine.sampled_tokens

    @property
    def prefilled_tokens(self) -> int:
        return self._thread.engine.prefilled_tokens

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request, in order."""
        return await self._thread.complete(requests)

    async def release(self, episode_id: str) -> None:
        """Free the episode's slot, in order with what was asked before. A turn that is still being sampled
        ends where it is."""
        self._thread.release(episode_id)

    def on_weights_changed(self, write: Callable[[], None] = lambda: None) -> None:
        """Count a new policy version and drop every cached key, from any thread. `write` changes the weights,
        between two steps of the engine: turns that are being sampled go on with the new ones."""

        def change() -> None:
            write()
            self._thread.engine.reset()
            self._thread.version = self._thread.engine.version

        self._thread.call(change)

    def close(self) -> None:
        """Stop the compute thread. Turns that are being sampled, and whoever asks later, get an error."""
        self._thread.close()
