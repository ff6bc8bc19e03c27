"""A model behind an API: what it may cost, and the journal of what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import ApiConfig
from mcpagent.core.records import JsonObject
from mcpagent.llm.batch import BatchClient
from mcpagent.llm.budget import ApiBudget, given_price, price_of
from mcpagent.llm.client import RetryingClient, open_client
from mcpagent.llm.journal import open_journal
from mcpagent.tools.io_thread import IOThread


def budget_of(model: str, api: ApiConfig) -> ApiBudget:
    """Return the caps of `api` for one model. Raises UserError for a cap in dollars without a price."""
    given = given_price(api.price_in, api.price_out)
    return ApiBudget(price=given or price_of(model), max_cost=api.max_cost, max_requests=api.max_requests)


@dataclass(frozen=True)
class ApiModel:
    """A model whose questions and answers are kept: `client` asks nothing twice, `budget` is what was used,
    by earlier runs of the journal too."""

    client: RetryingClient
    budget: ApiBudget
    journal: Path


@contextmanager
def open_api_model(
    model: str,
    config: TrainConfig,
    *,
    name: str,
    run: JsonObject,
    base_url: str | None,
    io: IOThread,
    on_note: Callable[[str], None],
) -> Iterator[ApiModel]:
    """Open a model with a journal, in which `name` and `run` tell it from others. Raises UserError."""
    api, budget = config.api.model_copy(update={"base_url": base_url}), budget_of(model, config.api)
    folder = Path(config.output_dir) / "api"
    with (
        open_journal(folder, name=name, run=run) as (journal, path),
        open_client(model, api, budget=budget, run=io.run, on_note=on_note, journal=journal) as client,
    ):
        journal.charge(budget)
        yield ApiModel(client, budget, path)


@contextmanager
def open_batch(
    model: str,
    config: TrainConfig,
    *,
    name: str,
    run: JsonObject,
    answers: Path | None,
    on_note: Callable[[str], None],
) -> Iterator[BatchClient]:
    """Open the journal of `open_api_model` for files in place of an endpoint, and put `answers` into it.
    Raises UserError."""
    with open_journal(Path(config.output_dir) / "api", name=name, run=run) as (journal, _):
        batch = BatchClient(model, journal=journal)
        if answers is not None:
            batch.take(answers, on_note=on_note)
        yield batch
