"""`VllmPolicy`: the `Policy` of a vLLM engine in this process, on a compute thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from mcpagent.core.trajectory import Completion
from mcpagent.errors import UserError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import EngineThread
from mcpagent.policy.vllm.engine import VllmEngine, VllmSettings


class VllmPolicy:
    """Samples with vLLM. `complete` may be called from any event loop, also many times at once; weights may
    be changed at any time, also while turns are being sampled."""

    def __init__(
        self,
        settings: VllmSettings,
        *,
        decode: Callable[[Sequence[int]], str],
        stop_ids: frozenset[int],
        threads: int = 1,
        version: int = 0,
    ) -> None:
        """`version` is that of the weights in `settings.model`; -1 where the first ones are still to come."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise UserError(
                "vLLM needs the process group of this process for itself, and there is one already: another "
                "engine, or a run on several devices",
                where="rollout.backend",
                remedy="start vLLM servers and name them in vllm.servers, or use --backend hf",
            )

        def make() -> VllmEngine:
            # The number of OpenMP threads belongs to the calling thread.
            torch.set_num_threads(threads)
            return VllmEngine(settings, stop_ids=stop_ids)

        self._thread = EngineThread(make, decode=decode)
        self._thread.version = version

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
        """Forget the episode. A turn that is still being sampled ends, without tokens."""
        self._thread.release(episode_id)

    def load_adapter(self, folder: Path) -> None:
        """A new version: the adapter in `folder`, for turns that begin from now on."""
        self._change(lambda version: self._thread.engine.load_adapter(folder, version=version))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """A new version: every weight by its name in the checkpoint, also for turns that are running."""
        self._change(lambda version: self._thread.engine.load_weights(weights, version=version))

    def sleep(self) -> None:
        """Give the device's memory to the trainer until `wake`. Nothing may be running."""
        self._thread.call(lambda: self._thread.engine.sleep())

    def wake(self) -> None:
        self._thread.call(lambda: self._thread.engine.wake())

    def close(self) -> None:
        """Stop the engine. Turns that are being sampled, and whoever asks later, get an error."""
        self._thread.close()
        self._thread.engine.close()

    def _change(self, load: Callable[[int], None]) -> None:
        def change() -> None:
            load(self._thread.version + 1)
            self._thread.version += 1

        self._thread.call(change)
