"""What may be spent, what is, and what one request can cost at most."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict, dataclass

import yaml

from mcpagent.config.environment import resource_path
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.llm.contract import ChatRequest, Usage

_OVERHEAD_TOKENS = 64  # what a server's template puts around the messages; a bound, and a generous one


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float

    def of(self, usage: Usage) -> float:
        """Dollars."""
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / 1e6


def at_most(request: ChatRequest) -> Usage:
    """Return a bound of what `request` can use: a token has at least one byte of what is sent."""
    sent = json.dumps([request.messages, request.tools, request.schema], ensure_ascii=False)
    overhead = _OVERHEAD_TOKENS * (1 + len(request.messages) + len(request.tools))
    return Usage(len(sent.encode()) + overhead, request.max_output_tokens)


class BudgetSpent(Exception):
    """The next request could pass a cap; `cap` is the name of the option."""

    def __init__(self, cap: str) -> None:
        super().__init__(cap)
        self.cap = cap


class ApiBudget:
    """Caps that hold under concurrency: each request reserves the most that it can cost before it is sent.

    A request whose cost stays unknown (a timeout, a reply without usage, one in flight when the process was
    killed) is counted at what was reserved for it, and as `uncertain`. Bound to one event loop.
    """

    def __init__(
        self, *, price: Price | None = None, max_cost: float | None = None, max_requests: int | None = None
    ) -> None:
        if max_cost is not None and price is None:
            raise UserError(
                f"api.max_cost is {max_cost:g}, but what a token costs is not known",
                where="api.max_cost",
                remedy="give dollars per million tokens: --set api.price_in=0.25 --set api.price_out=2",
            )
        self.price = price
        self.max_cost = max_cost
        self.max_requests = max_requests
        self.requests = 0
        self.uncertain = 0
        self.usage = Usage()  # that was reported
        self._uncertain_usage = Usage()  # bounds if nothing was
        self._reserved: list[Usage] = []
        self._changed = asyncio.Condition()

    @property
    def cost(self) -> float | None:
        """Dollars spent, at most; None without a price."""
        return None if self.price is None else self.price.of(self.usage + self._uncertain_usage)

    async def reserve(self, bound: Usage) -> None:
        """Wait until `bound` fits with what is in flight. Raises BudgetSpent if it never will."""
        async with self._changed:
            while True:
                if self.max_requests is not None and self.requests >= self.max_requests:
                    raise BudgetSpent("max_requests")
                if self._fits(bound):
                    break
                if not self._reserved:
                    raise BudgetSpent("max_cost")
                await self._changed.wait()
            self.requests += 1
            self._reserved.append(bound)

    async def settle(self, bound: Usage, usage: Usage | None) -> None:
        """A reserved request has ended with `usage`; None: unknown."""
        self._reserved.remove(bound)
        self._count(bound, usage)
        async with self._changed:
            self._changed.notify_all()

    def remember(self, bound: Usage, usage: Usage | None) -> None:
        """A request of an earlier process that spends from the same budget."""
        self.requests += 1
        self._count(bound, usage)

    def as_json(self) -> JsonObject:
        """Return what was spent, for a report; `cost_usd` is None without a price."""
        cost = self.cost
        return {
            "requests": self.requests,
            "uncertain_requests": self.uncertain,
            **asdict(self.usage),
            "cost_usd": None if cost is None else round(cost, 6),
        }

    def _count(self, bound: Usage, usage: Usage | None) -> None:
        if usage is None:
            self.uncertain += 1
            self._uncertain_usage += bound
        else:
            self.usage += usage

    def _fits(self, bound: Usage) -> bool:
        if self.max_cost is None or self.price is None:
            return True
        all_in_flight = sum(self._reserved, bound)
        return self.price.of(self.usage + self._uncertain_usage + all_in_flight) <= self.max_cost


_DATE = re.compile(r"-20\d\d-\d\d-\d\d$")


def load_prices() -> dict[str, Price]:
    """Return the prices that ship with mcpagent, by model name."""
    table = yaml.safe_load(resource_path("templates/prompts/prices.yaml").read_text("utf-8"))
    return {model: Price(**price) for model, price in table.items()}


def price_of(model: str) -> Price | None:
    """Return the price of a model, dated or not; None for one that the table does not know."""
    return load_prices().get(_DATE.sub("", model))


def given_price(price_in: float | None, price_out: float | None) -> Price | None:
    """Return the price that `api.price_in` and `api.price_out` name, in dollars per million tokens; None if
    there is none. Raises UserError for half of one."""
    if price_in is not None and price_out is not None:
        return Price(price_in, price_out)
    if price_in is not None or price_out is not None:
        raise UserError(
            "one of api.price_in and api.price_out is set, which is the price of half a request",
            remedy="set both, in dollars per million tokens, or none",
        )
    return None
