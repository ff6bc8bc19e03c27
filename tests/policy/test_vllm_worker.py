"""What vLLM's worker does for mcpagent and needs no vLLM to be tried. On real engines: tests/vllm."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mcpagent.errors import UserError
from mcpagent.policy.vllm.engine import VllmSettings, engine_options, memory_share
from mcpagent.policy.vllm.process import flags
from mcpagent.policy.vllm.worker import TOKEN, TokenGuard, digest, weight_sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_over_a_layer_are_those_of_its_parts_in_any_order_and_differ_by_one_bit(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, up = (torch.randn(n, 40, generator=generator).to(dtype) for n in (8, 4, 12))
    apart = [("model.layers.3.q.weight", q), ("model.layers.3.k.weight", k), ("model.layers.4.up.weight", up)]
    joined = [("layers.4.x.weight", up.flip(0)), ("layers.3.qk.weight", torch.cat([k, q]))]
    norms = [("layers.3.norm.weight", torch.ones(40))]
    for columns in (None, 7):
        sums = weight_sums(apart, dtype=dtype, columns=columns)
        assert sums == weight_sums([*joined, *norms], dtype=dtype, columns=columns)
        assert set(sums) == {"3", "4"}
        k.view(torch.int16 if dtype != torch.float32 else torch.int32)[2, 0] += 1
        changed = weight_sums(apart, dtype=dtype, columns=columns)
        assert changed["3"] != sums["3"] and changed["4"] == sums["4"]
        k.view(torch.int16 if dtype != torch.float32 else torch.int32)[2, 0] -= 1


def test_a_digest_is_of_the_values_wherever_they_lie() -> None:
    matrix = torch.arange(12.0).view(3, 4)
    assert digest(matrix) == digest(matrix.t().contiguous().t())
    assert digest(matrix) != digest(matrix + 1e-6)


def test_every_route_wants_the_token_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Starlette(
        routes=[Route("/collective_rpc", lambda _: PlainTextResponse("done"), methods=["GET", "POST"])]
    )
    with pytest.raises(RuntimeError, match=TOKEN):
        TokenGuard(app)
    monkeypatch.setenv(TOKEN, "right")

    async def status(headers: dict[str, str]) -> int:
        transport = httpx.ASGITransport(app=TokenGuard(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://there") as http:
            return (await http.post("/collective_rpc", headers=headers)).status_code

    assert asyncio.run(status({})) == 401
    assert asyncio.run(status({"Authorization": "Bearer wrong"})) == 401
    assert asyncio.run(status({"Authorization": "Bearer right"})) == 200


def test_an_engine_takes_what_is_free_and_never_more_than_was_asked() -> None:
    gib = 1 << 30
    assert memory_share(79 * gib, 80 * gib, asked=0.6) == 0.6
    assert memory_share(40 * gib, 80 * gib, asked=0.6) == pytest.approx(0.48)  # half is free, less the margin
    with pytest.raises(UserError, match=r"4.0 of the GPU's 80.0 GiB are free"):
        memory_share(4 * gib, 80 * gib, asked=0.6)


def test_options_of_an_engine_are_the_same_as_a_command_line() -> None:
    options = {"model": "m", "enable_lora": True, "enable_chunked_prefill": False, "quantization": None}
    expected = ["--model", "m", "--enable-lora", "--no-enable-chunked-prefill"]
    assert flags(options) == expected


def test_what_is_sent_again_is_not_kept_while_the_engine_sleeps() -> None:
    assert VllmSettings(model="m", lora_rank=8).sleep_level == 1
    assert VllmSettings(model="m").sleep_level == 2
    assert engine_options(VllmSettings(model="m", tensor_parallel_size=2))["tensor_parallel_size"] == 2
