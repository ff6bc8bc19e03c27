"""What the tokens of well-known models cost: `templates/prompts/prices.yaml`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from mcpagent.config.resources import resource_path
from mcpagent.errors import UserError
from mcpagent.llm.budget import Price

_DATE = re.compile(r"-20\d\d-\d\d-\d\d$")


def load_prices(path: Path | None = None) -> dict[str, Price]:
    """By model name."""
    table = yaml.safe_load((path or resource_path("templates/prompts/prices.yaml")).read_text("utf-8"))
    return {model: Price(**price) for model, price in table.items()}


def price_of(model: str) -> Price | None:
    """The price of a model, dated or not; None for one that the table does not know."""
    return load_prices().get(_DATE.sub("", model))


def given_price(price_in: float | None, price_out: float | None, *, names: tuple[str, str]) -> Price | None:
    """The price that a user names, in dollars per million tokens; None where there is none. Raises UserError
    for half of one. `names` are those of the two settings."""
    if price_in is not None and price_out is not None:
        return Price(price_in, price_out)
    if price_in is not None or price_out is not None:
        raise UserError(
            f"one of {names[0]} and {names[1]} is set, which is the price of half a request",
            remedy="set both, in dollars per million tokens, or none",
        )
    return None
