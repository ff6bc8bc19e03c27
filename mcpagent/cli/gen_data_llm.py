"""The half of `mcpagent gen-data` that asks a model: its options, its settings, what it prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mcpagent.cli.options import Answers, Batch, next_round
from mcpagent.cli.results import dataset_blocks
from mcpagent.config.environment import environment, resource_path
from mcpagent.config.schema import ApiConfig, TrainConfig
from mcpagent.console import Block, Console, counted
from mcpagent.errors import UserError
from mcpagent.llm.budget import ApiBudget
from mcpagent.llm.client import endpoint_settings
from mcpagent.llm.endpoint import EndpointSettings
from mcpagent.run.api_models import budget_of

if TYPE_CHECKING:
    from mcpagent.synth.generate import DatasetOutput
    from mcpagent.synth.llm.prompts import TaskSettings
    from mcpagent.synth.llm.sample import AskSettings

T = TypeVar("T", int, str)


@dataclass(frozen=True, kw_only=True)
class LLMOptions:
    """The options of a model that writes tasks; None if the environment or a default decides."""

    samples: Annotated[
        int | None,
        typer.Option(
            "--n-samples",
            min=1,
            help="Samples to ask for; each becomes a task or a reject. Environment: N_SAMPLES. Default: 20.",
        ),
    ] = None
    model: Annotated[str | None, typer.Option(help="Environment: OPENAI_MODEL. Default: gpt-5-mini.")] = None
    repairs: Annotated[
        int, typer.Option(min=0, help="How often a failed task goes back to the model with the reason.")
    ] = 2
    batch: Batch = None
    answers: Answers = None
    allow_writes: Annotated[
        bool,
        typer.Option("--allow-writes", help="Let plans call, and so execute, tools of --servers that write."),
    ] = False
    max_output_tokens: Annotated[int, typer.Option(min=1, help="Of one answer, reasoning included.")] = 4096
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Ask again what the service failed to answer in an earlier run."),
    ] = False


def run_llm(
    options: LLMOptions,
    config: TrainConfig,
    output: DatasetOutput,
    *,
    distractors: int | None,
    console: Console,
) -> None:
    """Generate, write the splits, and print what became of every sample. Raises UserError and RunError."""
    from mcpagent.synth.llm.generate import make_dataset_with_model, no_task, requests_lost

    settings, asking = _settings(options, config, output, distractors=distractors, console=console)
    document = make_dataset_with_model(
        config.tools, output, settings=settings, asking=asking, console=console
    )
    if "waiting" in document:
        console.print_blocks(document, _waiting(document))
        return
    if not document["records"]:
        console.show_blocks(_made(document))
        raise no_task(document)
    console.print_blocks(document, [*_made(document), *next_steps(output.folder)])
    if (lost := requests_lost(document)) is not None:
        console.note(lost)


def _settings(
    options: LLMOptions,
    config: TrainConfig,
    output: DatasetOutput,
    *,
    distractors: int | None,
    console: Console,
) -> tuple[TaskSettings, AskSettings]:
    from mcpagent.synth.llm.prompts import TaskSettings, load_prompts
    from mcpagent.synth.llm.sample import AskSettings

    prompts = load_prompts(resource_path("templates/prompts/tasks.yaml"))
    env = environment()
    settings = TaskSettings(
        max_tools=_chosen(None, env, "MAX_TOOLS", 4),
        max_turns=_chosen(None, env, "MAX_TURNS", 8),
        domains=_listed(_chosen(None, env, "DOMAINS", "whatever these tools are for")),
        distractors=distractors,
        may_write=options.allow_writes or config.tools.servers is None,  # built-in ones are embedded
        heldout_servers=output.heldout_servers,
        seed=config.seed,
    )
    endpoint = _endpoint(options, config.api, is_asked=options.batch is None)
    asking = AskSettings(
        endpoint=endpoint,
        prompts=prompts,
        samples=_chosen(options.samples, env, "N_SAMPLES", 20),
        repairs=options.repairs,
        max_output_tokens=options.max_output_tokens,
        budget=_budget(config.api, endpoint.model, console),
        journal=output.folder / "llm-journal.jsonl",
        retry_failed=options.retry_failed,
        batch=options.batch,
        answers=options.answers,
    )
    return settings, asking


def _endpoint(options: LLMOptions, api: ApiConfig, *, is_asked: bool = True) -> EndpointSettings:
    """Return whom to ask; with a batch only the name of the model counts, and no key is needed."""
    env = environment()
    if not is_asked:
        return EndpointSettings(model=_chosen(options.model, env, "OPENAI_MODEL", "gpt-5-mini"), api_key="")
    if api.base_url is None:
        api = api.model_copy(update={"base_url": env.get("OPENAI_BASE_URL") or None})
    return endpoint_settings(_chosen(options.model, env, "OPENAI_MODEL", "gpt-5-mini"), api)


def has_endpoint(api: ApiConfig) -> bool:
    """Return whether a model can be asked."""
    env = environment()
    return bool(api.base_url or env.get("OPENAI_BASE_URL") or env.get("OPENAI_API_KEY"))


def next_steps(folder: Path) -> Iterator[Block]:
    """Yield the commands that go on from a dataset."""
    data = shlex.quote(str(folder))
    yield f"Next: mcpagent env check --data {data}"
    yield f"      mcpagent train --dry-run --model MODEL --data {data}"


def _chosen(given: T | None, env: Mapping[str, str], name: str, default: T) -> T:
    """Return the option, else the environment variable `name`, else the default. Raises UserError."""
    if given is not None:
        return given
    text = env.get(name, "").strip()
    if not text:
        return default
    if isinstance(default, str):
        return text
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise UserError(f"{name} is {text!r}", where="environment", remedy="set it to a whole number from 1")
    return number


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _budget(api: ApiConfig, model: str, console: Console) -> ApiBudget:
    budget = budget_of(model, api)
    price = budget.price
    if price is None:
        console.note(f"{model} has no known price: set api.price_in and api.price_out to see what it costs")
    elif api.price_in is None:
        told = f"${price.input:g} and ${price.output:g} per million tokens in and out"
        console.note(f"{model}: {told} as published in 2025; api.price_in and api.price_out say otherwise")
    return budget


def _waiting(document: Mapping[str, Any]) -> Iterator[Block]:
    yield f"{counted(document['waiting'], 'question')} in {document['batch']}"
    yield (
        "Each tells a provider the instructions, names, descriptions and schemas of "
        f"{document['shown']['tools']} tools of {', '.join(document['shown']['servers'])}, and "
        f"{document['shown']['results']} of their results; your settings' secrets are redacted."
    )
    yield f"{document['finished']} of {document['samples']} samples are finished; no task is written yet"
    yield next_round(document["batch"])


def _made(document: Mapping[str, Any]) -> Iterator[Block]:
    from mcpagent.synth.llm.generate import failed_requests, option_names

    yield from dataset_blocks(document, is_text=True)
    attempts, spend = document["attempts"], document["spend"]
    yield f"{document['repaired']} tasks were good after a repair; {attempts['failed']} drafts failed"
    at_most = "at most " if spend["uncertain_requests"] else ""
    cost = "cost unknown" if spend["cost_usd"] is None else f"{at_most}${spend['cost_usd']:.4f}"
    yield (
        f"{spend['requests']} requests ({spend['answers_from_journal']} answered before this run), "
        f"{spend['input_tokens']} tokens in, {spend['output_tokens']} out, {cost}"
    )
    if document["failed_requests"]["total"]:
        yield failed_requests(document)
    yield f"{document['executed_calls']} calls over MCP in {document['seconds']:.1f} s"
    yield f"Every answer is kept in {document['journal']}"
    if document["unfinished"]:
        yield (
            f"{document['unfinished']} samples wait: {option_names(document['stopped_by'])} reached. The "
            "same command with a higher cap and --overwrite continues."
        )
