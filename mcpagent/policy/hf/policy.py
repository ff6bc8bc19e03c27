"""`HFPolicy`: the `Policy` of a transformers model, on a compute thread of its own.

`SlotEngine` serves most models. `PlainEngine`, below, serves those that the slot cache cannot: sliding
windows, recurrent layers, other kernels. Each turn is a row of its own there, with the cache that
transformers makes for the architecture, filled from the whole context when the turn begins: slower, and right
for whatever transformers can generate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mcpagent.models.attention import NAME, use_own_attention
from mcpagent.models.logits import output_head
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import EnginePolicy, Finished
from mcpagent.policy.hf.slot_engine import SlotEngine, cache_keyword
from mcpagent.policy.sampling import OpenTurn, TokenSampler, sample_rows, sample_turns


@dataclass(eq=False)
class _Turn:
    sampled: OpenTurn
    cache: Any = None


class PlainEngine:
    """`decoder` and `head` as for `SlotEngine`, whose contract it keeps."""

    def __init__(
        self,
        *,
        decoder: Callable[..., Any],
        head: Callable[[torch.Tensor], torch.Tensor],
        stop_ids: frozenset[int],
        max_context: int,
        device: torch.device,
        sample: TokenSampler = sample_rows,
    ) -> None:
        self._decoder, self._head, self._sample_rows = decoder, head, sample
        self._cache_keyword = cache_keyword(decoder)
        self._stop_ids, self._max_context, self._device = stop_ids, max_context, device
        self._turns: dict[str, _Turn] = {}

    @property
    def has_work(self) -> bool:
        """Return True while a turn is being sampled."""
        return bool(self._turns)

    def reset(self) -> None:
        """The weights have changed: nothing is kept from turn to turn that knows the old ones."""

    def release(self, episode_id: str) -> list[Finished]:
        """Forget an episode; a turn of it that is still being sampled ends where it is."""
        turn = self._turns.pop(episode_id, None)
        return [] if turn is None else [turn.sampled.finished(self._stop_ids)]

    def admit(self, requests: Sequence[CompletionRequest]) -> list[Finished]:
        """Let requests join."""
        for request in requests:
            sampled = OpenTurn.begin(request, max_context=self._max_context)
            self._turns[request.episode_id] = _Turn(sampled)
        return []

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """One token for every turn that is being sampled; returns the turns that are over."""
        hidden = torch.cat([self._forward(turn) for turn in self._turns.values()])
        turns = [turn.sampled for turn in self._turns.values()]
        sample_turns(turns, self._head(hidden), sample=self._sample_rows)
        over = [turn for turn in turns if turn.is_over(self._stop_ids)]
        for turn in over:
            del self._turns[turn.request.episode_id]
        return [turn.finished(self._stop_ids) for turn in over]

    def _forward(self, turn: _Turn) -> torch.Tensor:
        """Return the hidden state [1, hidden] that the next token is sampled from."""
        tokens = turn.sampled.tokens
        new = tokens[-1:] if turn.cache is not None else [*turn.sampled.request.token_ids, *tokens]
        ids = torch.tensor([new], device=self._device)
        out = self._decoder(input_ids=ids, use_cache=True, **{self._cache_keyword: turn.cache})
        # Some recurrent models (Mamba, RecurrentGemma) give none: their context is computed for every token.
        turn.cache = getattr(out, self._cache_keyword, None)
        return out.last_hidden_state[:, -1]


def why_no_slots(model: Any) -> str | None:
    """Return why the slot cache cannot serve `model`; None if it can, and then its attention is ready for it.

    The cache gives every layer one mask over all earlier positions, which kernels that take no mask, layers
    with a sliding window and recurrent layers would not follow.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    window = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
    if kinds != {"full_attention"} or window is not None:
        layers = ", ".join(sorted(kinds - {"full_attention"})) or f"a sliding window of {window} tokens"
        return f"{config.model_type} has {layers}"
    if model._is_stateful:
        return f"{config.model_type} has recurrent layers"
    use_own_attention(model)
    if config._attn_implementation not in ("eager", NAME):
        return f"attn_implementation {config._attn_implementation} takes no mask of its own"
    return None


log = logging.getLogger(__name__)


class HFPolicy(EnginePolicy[SlotEngine | PlainEngine]):
    """Samples from a causal LM of transformers: requests join the running batch."""

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

        super().__init__(make, decode=decode, max_context=max_context)

    def on_weights_changed(self, write: Callable[[], None] = lambda: None) -> None:
        """Count a new policy version and drop every cached key, from any thread. `write` changes the weights.
        Raises RuntimeError while a turn is being sampled."""

        def change() -> None:
            write()
            self.engine.reset()

        self.change_weights(change)
