"""`VllmServers`: the `Policy` of one or several vLLM servers, over HTTP: token ids in, token ids out.

An episode stays with the server that has its prefix cached. One that dies loses its episodes to the others;
one that is back joins again at the next update, from which on it has the current weights.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Completion, FinishReason, PolicySpan
from mcpagent.errors import RunError, UserError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.sampling import refuse_infinite
from mcpagent.policy.vllm.worker import TOKEN

T = TypeVar("T")

_KEPT = 3  # adapter versions that stay loaded: turns that began with one may still run
START = (
    "start it with: VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 python -m "
    "vllm.entrypoints.openai.api_server --host 127.0.0.1 --model MODEL --logprobs-mode processed_logprobs "
    "--generation-config vllm --worker-extension-cls mcpagent.policy.vllm.worker.WeightLoading "
    "--enable-lora --max-lora-rank 16 --max-loras 2 (without the last three for finetune.mode full; with "
    "--no-enable-chunked-prefill on a CPU)"
)


@dataclass(eq=False)
class _Server:
    url: str  # a base URL, or unix: and the path of a socket
    http: httpx.AsyncClient
    model: str = ""
    is_alive: bool = True
    turns: int = 0  # in flight


class _Gone(Exception):
    """The server did not answer, or does not have the current weights."""


class VllmServers:
    """`complete` may be called from any event loop; HTTP runs on a thread of its own."""

    def __init__(
        self,
        urls: Iterable[str],
        *,
        decode: Callable[[Sequence[int]], str],
        stop_ids: frozenset[int],
        max_context: int,
        timeout_s: float = 600.0,
        version: int = 0,
        is_seeded: bool = True,
        sleep_level: int | None = None,
    ) -> None:
        """`version` is that of the served weights; -1 if the first ones are still to come. Only with
        `is_seeded` each turn has a random stream of its own. `sleep_level` None: `sleep` does nothing. Raises
        UserError if a server does not answer, holds less context than `max_context`, or lets others on
        the network use its development routes."""
        self._decode, self._stop_ids, self._max_context = decode, sorted(stop_ids), max_context
        self._is_seeded, self._sleep_level = is_seeded, sleep_level
        self._servers = [_Server(url.rstrip("/"), _client(url, timeout_s)) for url in urls]
        self._at: dict[str, _Server] = {}  # by episode
        self._run = secrets.token_hex(4)  # adapters of another run may be on the servers still
        self.adapter: str | None = None  # its name on the servers; None for whole weights
        self._loaded: list[str] = []
        self.version = version
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="mcpagent-vllm-http", daemon=True)
        self._thread.start()
        try:
            self._call(self._everywhere(self._greet, is_first=True))
        except BaseException:
            self.close()
            raise

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request, in order. Raises RunError when no server is left."""

        async def together() -> list[Completion]:
            return list(await asyncio.gather(*(self._turn(request) for request in requests)))

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(together(), self._loop))

    async def release(self, episode_id: str) -> None:
        """Forget where the episode was."""
        self._loop.call_soon_threadsafe(self._at.pop, episode_id, None)

    def load_adapter(self, folder: Path) -> None:
        """A new version: the adapter in `folder`, which every server must be able to read, for turns that
        begin from now on; under a new name, so that no server goes on with old keys."""
        self._call(self._load_adapter(folder))

    def follow(self, adapter: str | None) -> None:
        """A new version, which another process has given to the servers under that name."""
        self.adapter = adapter
        self.version += 1

    def load_folder(self, folder: Path) -> None:
        """A new version: all weights from the checkpoint in `folder`. Raises RuntimeError while a turn is
        being sampled."""
        self._call(self._load_folder(folder))

    def sleep(self) -> None:
        """Give the devices' memory to the trainer until `wake`. Nothing may be running."""
        if self._sleep_level is not None:
            path = f"/sleep?level={self._sleep_level}&mode=wait"
            self._call(self._everywhere(lambda server: self._post(server, path, None)))

    def wake(self) -> None:
        """Take the memory back after `sleep`."""
        if self._sleep_level is not None:
            self._call(self._everywhere(lambda server: self._post(server, "/wake_up", None)))

    def served(self) -> dict[str, list[JsonObject]]:
        """Checksums of what samples, by server and worker (see `policy.vllm.worker`)."""
        method = "mcpagent_weights" if self.adapter is None else "mcpagent_adapter"
        alive = [server for server in self._servers if server.is_alive]

        async def ask() -> list[Any]:
            return await asyncio.gather(
                *(self._post(server, "/collective_rpc", {"method": method}) for server in alive),
                return_exceptions=True,
            )

        replies = zip(alive, self._call(ask()), strict=True)
        # One that does not answer serves nothing, and one that refuses has no way to be read back.
        return {
            server.url: (reply or {}).get("results") or []
            for server, reply in replies
            if not isinstance(reply, BaseException)
        }

    def close(self) -> None:
        """Take our adapters off the servers and stop asking them."""
        self._call(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _turn(self, request: CompletionRequest) -> Completion:
        if len(request.token_ids) >= self._max_context:
            return Completion(text="", finish_reason=FinishReason.OVERFLOW)
        while True:
            server = self._server_for(request.episode_id)
            server.turns += 1
            version = self.version
            try:
                reply = await self._post(server, "/v1/completions", self._body(server, request))
                return self._completion(reply["choices"][0], version)
            except _Gone:
                server.is_alive = False
            finally:
                server.turns -= 1

    def _server_for(self, episode_id: str) -> _Server:
        server = self._at.get(episode_id)
        if server is None or not server.is_alive:
            alive = [server for server in self._servers if server.is_alive]
            if not alive:
                raise RunError(
                    f"none of the vLLM servers answers any more: {', '.join(s.url for s in self._servers)}",
                    where="vllm.servers",
                    remedy="look into their logs; the run continues from its last checkpoint with --resume",
                )
            server = self._at[episode_id] = min(alive, key=lambda s: s.turns)
        return server

    def _body(self, server: _Server, request: CompletionRequest) -> JsonObject:
        sampling = request.sampling
        return {
            "model": self.adapter or server.model,
            "prompt": list(request.token_ids),
            "max_tokens": min(sampling.max_new_tokens, self._max_context - len(request.token_ids)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed if self._is_seeded else None,
            "stop_token_ids": self._stop_ids,
            "ignore_eos": True,
            "logprobs": 0,  # of the sampled token alone
            "return_tokens_as_token_ids": True,  # not their text, which some ids do not have
            "return_token_ids": True,
        }

    def _completion(self, choice: JsonObject, version: int) -> Completion:
        token_ids, logprobs = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
        refuse_infinite(logprobs)
        is_stop = choice["finish_reason"] == "stop"
        return Completion(
            text=self._decode(token_ids),
            finish_reason=FinishReason.STOP if is_stop else FinishReason.LENGTH,
            token_ids=token_ids,
            logprobs=logprobs,
            policy_versions=(PolicySpan(version=version, start=0, end=len(token_ids)),),
        )

    async def _load_adapter(self, folder: Path) -> None:
        name = f"policy-{self._run}-{len(self._loaded)}"

        async def load(server: _Server) -> None:
            body = {"lora_name": name, "lora_path": str(folder.absolute())}
            await self._post(server, "/v1/load_lora_adapter", body)

        await self._everywhere(load)
        self._loaded.append(name)
        self.adapter = name
        self.version += 1
        if len(self._loaded) > _KEPT:
            await self._unload(self._loaded[-1 - _KEPT])

    async def _load_folder(self, folder: Path) -> None:
        if any(server.turns for server in self._servers):
            raise RuntimeError("the weights cannot change while a turn is being sampled")

        async def load(server: _Server) -> None:
            body = {"method": "mcpagent_load_folder", "args": [str(folder.absolute())]}
            await self._post(server, "/collective_rpc", body)
            await self._post(server, "/reset_prefix_cache", None)

        await self._everywhere(load)
        self.version += 1

    async def _unload(self, name: str) -> None:
        alive = [server for server in self._servers if server.is_alive]
        unload = {"lora_name": name}
        await asyncio.gather(
            *(self._post(server, "/v1/unload_lora_adapter", unload) for server in alive),
            return_exceptions=True,  # one that is gone has nothing loaded
        )

    async def _greet(self, server: _Server) -> None:
        try:
            reply = await server.http.get("/v1/models")
            card = reply.raise_for_status().json()["data"][0]
        except (httpx.HTTPError, KeyError, ValueError) as error:
            raise UserError(
                f"no vLLM server answers at {server.url}: {error}", where="vllm.servers", remedy=START
            ) from error
        server.model = card["id"]
        if _is_on_a_network(server.url):
            open_to_all = httpx.AsyncClient(base_url=server.url, timeout=10.0)
            async with open_to_all as stranger:
                if (await stranger.get("/is_sleeping")).status_code not in (401, 403, 404):
                    raise UserError(
                        f"{server.url} opens vLLM's development routes to the whole network; they load "
                        "weights and call methods of its workers",
                        where="vllm.servers",
                        remedy="bind it to 127.0.0.1 (and reach it through ssh -L), or give it the "
                        f"middleware mcpagent.policy.vllm.worker.TokenGuard and set {TOKEN} to the same "
                        "secret here and there",
                    )
        if card.get("max_model_len", self._max_context) < self._max_context:
            raise UserError(
                f"{server.url} holds contexts of {card['max_model_len']} tokens, and the run needs "
                f"{self._max_context}",
                where="vllm.servers",
                remedy="start it with a larger --max-model-len, or lower rollout.max_context_tokens",
            )

    async def _everywhere(
        self, do: Callable[[_Server], Awaitable[object]], *, is_first: bool = False
    ) -> None:
        """Keep the servers on which `do` succeeds; raises RunError if there are none."""
        outcomes = await asyncio.gather(*(do(server) for server in self._servers), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for server, outcome in zip(self._servers, outcomes, strict=True):
            server.is_alive = not isinstance(outcome, BaseException)
        wrong = [f for f in failures if is_first or not isinstance(f, _Gone)]
        if wrong:
            raise wrong[0]
        if len(failures) == len(self._servers):
            raise RunError(f"no vLLM server took the new weights: {failures[0]}", where="vllm.servers")

    async def _post(self, server: _Server, path: str, body: JsonObject | None) -> Any:
        """Return the answer's JSON. Raises _Gone if the server is; RunError if it refuses."""
        try:
            reply = await server.http.post(path, json=body)
        except httpx.TransportError as error:
            raise _Gone(f"{server.url}: {str(error) or type(error).__name__}") from error
        is_missing_adapter = path == "/v1/completions" and reply.status_code == 404
        if reply.status_code >= 502 or is_missing_adapter:
            raise _Gone(f"{server.url} answers {reply.status_code}: {reply.text[:200]}")
        if reply.is_error:
            raise RunError(
                f"{server.url}{path} answers {reply.status_code}: {reply.text[:500]}",
                where="vllm.servers",
                remedy=START,
            )
        return reply.json() if "json" in reply.headers.get("content-type", "") else None

    async def _leave(self) -> None:
        for name in self._loaded[-_KEPT:]:
            await self._unload(name)
        for server in self._servers:
            await server.http.aclose()


def _client(url: str, timeout_s: float) -> httpx.AsyncClient:
    # A connection for each request: uvicorn closes a kept one after an error and after an idle while, which
    # the next request would cross.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(timeout_s, connect=10.0)
    token = os.environ.get(TOKEN)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if (socket := url.removeprefix("unix:")) != url:
        transport = httpx.AsyncHTTPTransport(uds=socket, limits=limits)
        return httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=timeout)
    return httpx.AsyncClient(base_url=url.rstrip("/"), timeout=timeout, limits=limits, headers=headers)


def _is_on_a_network(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if url.startswith("unix:") or host == "localhost":
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True
