"""`openai:NAME` as a policy: the client, its limits and its prices from the `api` section."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mcpagent.config.api import ApiConfig
from mcpagent.config.environment import environment
from mcpagent.config.schema import TrainConfig
from mcpagent.errors import UserError
from mcpagent.llm.budget import Budget
from mcpagent.llm.endpoint import Endpoint, EndpointSettings
from mcpagent.llm.patient import PatientClient
from mcpagent.llm.prices import given_price
from mcpagent.policy.openai import OpenAIPolicy
from mcpagent.tools.io_thread import IOThread

PREFIX = "openai:"
_KEY = "OPENAI_API_KEY"
_PLACEHOLDER_KEY = "unused"  # the SDK insists on one; servers of one's own seldom do


@dataclass(frozen=True)
class ApiPolicy:
    """`budget` is what was used so far."""

    policy: OpenAIPolicy
    budget: Budget
    base_url: str


@contextmanager
def open_api_policy(
    name: str, *, config: TrainConfig, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[ApiPolicy]:
    """The policy of `openai:NAME`. Raises UserError where the key is missing, or where sampling is asked for
    that the API does not have."""
    model, api = name.removeprefix(PREFIX), config.api
    if not model:
        raise UserError("openai: names no model", remedy="for example openai:gpt-5-mini")
    if config.rollout.top_k:
        raise UserError(
            f"rollout.top_k is {config.rollout.top_k}, but Chat Completions has no such setting",
            where="rollout.top_k",
            remedy="use 0, and rollout.top_p where the tail is to be cut",
        )
    endpoint = Endpoint(
        EndpointSettings(
            model=model,
            backend="chat",
            base_url=api.base_url,
            api_key=_key(api),
            timeout_s=api.timeout_s,
        ),
        on_note=on_note,
    )
    price = given_price(api.price_in, api.price_out, names=("api.price_in", "api.price_out"))
    budget = Budget(price=price)
    client = PatientClient(
        endpoint,
        budget=budget,
        max_in_flight=api.max_in_flight,
        per_minute=api.calls_per_minute,
        attempts=api.attempts,
    )
    try:
        yield ApiPolicy(
            OpenAIPolicy(client, price=price), budget, api.base_url or "https://api.openai.com/v1"
        )
    finally:
        io.run(endpoint.close())


def _key(api: ApiConfig) -> str:
    key = environment().get(_KEY, "")
    if not key and api.base_url is None:
        raise UserError(
            f"OpenAI's API needs a key, and {_KEY} is not set",
            where=_KEY,
            remedy=f"export {_KEY}=..., or put it into .env; --base-url names a server of your own",
        )
    return key or _PLACEHOLDER_KEY
