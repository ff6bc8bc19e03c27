"""What the tokens of well-known models cost: `templates/prompts/prices.yaml`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from mcpagent.config.resources import resource_path
from mcpagent.llm.budget import Price

_DATE = re.compile(r"-20\d\d-\d\d-\d\d$")


def load_prices(path: Path | None = None) -> dict[str, Price]:
    """By model name."""
    table = yaml.safe_load((path or resource_path("templates/prompts/prices.yaml")).read_text("utf-8"))
    return {model: Price(**price) for model, price in table.items()}


def price_of(model: str) -> Price | None:
    """The price of a model, dated or not; None for one that the table does not know."""
    return load_prices().get(_DATE.sub("", model))
