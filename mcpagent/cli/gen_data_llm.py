"""The half of `mcpagent gen-data` that asks a model: its options, its settings, what it prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcpagent.config.schema import ToolsConfig
    from mcpagent.console import Console
    from mcpagent.llm.budget import ApiBudget
    from mcpagent.llm.endpoint import EndpointSettings
    from mcpagent.synth.explore.rewrite import RewriteRun
    from mcpagent.synth.generate import DatasetOutput
    from mcpagent.synth.llm.generate import TaskSettings
    from mcpagent.synth.llm.sample import AskSettings

T = TypeVar("T", int, str)

_PLACEHOLDER_KEY = "unused"  # the SDK insists on one; servers of one's own seldom do


def _option(*names: str, help: str, minimum: float | None = None) -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, min=minimum)


@dataclass(frozen=True, kw_only=True)
class LLMOptions:
    """As they were given; None where the environment or a default decides."""

    samples: Annotated[
        int | None,
        _option(
            "--n-samples",
            minimum=1,
            help="Samples to ask for; each becomes a task or a counted reject. "
            "Environment: N_SAMPLES. Default: 20.",
        ),
    ] = None
    model: Annotated[
        str | None, _option("--model", help="Environment: OPENAI_MODEL. Default: gpt-5-mini.")
    ] = None
    solver_model: Annotated[
        str | None,
        _option(
            "--solver-model",
            help="With --rewrite: who has to reach the answer from the question. Default: --model.",
        ),
    ] = None
    backend: Annotated[
        str | None,
        _option(
            "--backend",
            help="The API: responses or chat. Environment: OPENAI_BACKEND. Default: responses, "
            "chat with --base-url.",
        ),
    ] = None
    base_url: Annotated[
        str | None,
        _option("--base-url", help="Any OpenAI-compatible server. Environment: OPENAI_BASE_URL."),
    ] = None
    max_tools: Annotated[
        int | None,
        _option(
            "--max-tools", minimum=1, help="Calls of a plan, at most. Environment: MAX_TOOLS. Default: 4."
        ),
    ] = None
    max_turns: Annotated[
        int | None,
        _option("--max-turns", minimum=2, help="Turns of an episode. Environment: MAX_TURNS. Default: 8."),
    ] = None
    domains: Annotated[
        str | None,
        _option(
            "--domains",
            help="Subjects, separated by commas; one is drawn for each sample. Environment: DOMAINS.",
        ),
    ] = None
    complexities: Annotated[
        str | None,
        _option(
            "--complexities",
            help="Of simple, moderate, complex, separated by commas. Environment: "
            "COMPLEXITIES. Default: all three.",
        ),
    ] = None
    curriculum: Annotated[
        Path | None,
        _option(
            "--curriculum",
            help="A JSON array of prompts (id, complexity, user_prompt, likely_tools, "
            "why_multi_turn) to take up in turn.",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        _option("--prompts", help="What the model is told. Default: the file that ships with mcpagent."),
    ] = None
    votes: Annotated[
        int,
        _option("--votes", minimum=0, help="Members of the committee; more than half must accept. 0: none."),
    ] = 3
    repairs: Annotated[
        int,
        _option(
            "--repairs", minimum=0, help="How often a failed task goes back to the model with the reason."
        ),
    ] = 2
    allow_writes: Annotated[
        bool,
        _option(
            "--allow-writes",
            help="Let plans call tools of --servers that are not read-only: they are executed.",
        ),
    ] = False
    concurrency: Annotated[int, _option("--concurrency", minimum=1, help="Requests in flight, at most.")] = 8
    rpm: Annotated[
        float | None, _option("--rpm", minimum=0.1, help="Requests a minute. Default: no limit.")
    ] = None
    request_timeout: Annotated[
        float, _option("--request-timeout", minimum=0.1, help="Seconds for one whole answer.")
    ] = 120.0
    max_output_tokens: Annotated[
        int, _option("--max-output-tokens", minimum=1, help="Of one answer, reasoning included.")
    ] = 4096
    max_requests: Annotated[
        int | None,
        _option(
            "--max-requests",
            minimum=1,
            help="Requests in all, retries and those of earlier runs of the journal included.",
        ),
    ] = None
    max_cost: Annotated[
        float | None,
        _option("--max-cost", minimum=0.0, help="US dollars in all; no request is sent that could pass it."),
    ] = None
    price_in: Annotated[
        float | None,
        _option(
            "--price-in", minimum=0.0, help="US dollars per million input tokens. Default: a small table."
        ),
    ] = None
    price_out: Annotated[
        float | None, _option("--price-out", minimum=0.0, help="US dollars per million output tokens.")
    ] = None
    journal: Annotated[
        Path | None,
        _option("--journal", help="A file that keeps every answer. Default: in --out, llm-journal.jsonl."),
    ] = None
    retry_failed: Annotated[
        bool,
        _option("--retry-failed", help="Ask again what the service failed to answer in an earlier run."),
    ] = False


def run_llm(
    options: LLMOptions,
    tools: ToolsConfig,
    output: DatasetOutput,
    *,
    seed: int,
    distractors: int | None,
    console: Console,
    shard: tuple[int, int] | None = None,
) -> None:
    """Generate, write the splits (or the file of a shard), and print what became of every sample. Raises
    UserError and RunError."""
    from mcpagent.synth.llm.generate import JournalFile, make_dataset_with_model, no_task, requests_lost

    settings, asking = _settings(options, tools, seed=seed, distractors=distractors)
    name = "llm-journal.jsonl" if shard is None else f"llm-journal-{shard[0]}-of-{shard[1]}.jsonl"
    document = make_dataset_with_model(
        tools,
        output,
        settings=settings,
        asking=asking,
        budget=_budget(options, asking.endpoint.model, console),
        journal=JournalFile(options.journal or output.folder / name, options.retry_failed),
        console=console,
        shard=shard,
    )
    if console.is_json and (document["records"] or shard):
        console.print_json(document)
    else:
        _print(document, console)
    if not document["records"] and shard is None:
        raise no_task(document)
    if (lost := requests_lost(document)) is not None:
        console.note(lost)


def shard_line(document: Mapping[str, Any]) -> str:
    """What a shard made, and what comes next."""
    number, of = document["shard"]
    folder = Path(document["path"]).parent
    return (
        f"shard {number} of {of}: {document['records']} tasks of {document['candidates']} candidates in "
        f"{document['path']}\nnext: mcpagent data merge {folder}/shard-*-of-{of}.jsonl --out FOLDER"
    )


def _settings(
    options: LLMOptions, tools: ToolsConfig, *, seed: int, distractors: int | None
) -> tuple[TaskSettings, AskSettings]:
    from mcpagent.config.environment import environment, resource_path
    from mcpagent.synth.llm.generate import TaskSettings
    from mcpagent.synth.llm.prompts import load_curriculum, load_prompts
    from mcpagent.synth.llm.sample import AskSettings

    prompts = load_prompts(options.prompts or resource_path("templates/prompts/tasks.yaml"))
    env = environment()
    endpoint = _endpoint(options)
    domains = _chosen(options.domains, env, "DOMAINS", "whatever these tools are for")
    settings = TaskSettings(
        max_tools=_chosen(options.max_tools, env, "MAX_TOOLS", 4),
        max_turns=_chosen(options.max_turns, env, "MAX_TURNS", 8),
        domains=_listed(domains),
        complexities=_complexities(_chosen(options.complexities, env, "COMPLEXITIES", "")),
        curriculum=load_curriculum(options.curriculum) if options.curriculum else (),
        distractors=distractors,
        may_write=options.allow_writes or tools.servers is None,  # the built-in ones are embedded here
        seed=seed,
    )
    asking = AskSettings(
        endpoint=endpoint,
        prompts=prompts,
        samples=_chosen(options.samples, env, "N_SAMPLES", 20),
        votes=options.votes,
        repairs=options.repairs,
        concurrency=options.concurrency,
        per_minute=options.rpm,
        max_output_tokens=options.max_output_tokens,
    )
    return settings, asking


def rewriting(options: LLMOptions, folder: Path, *, seed: int, console: Console) -> RewriteRun:
    """How `--rewrite` asks, and what it may spend. Raises UserError."""
    from mcpagent.synth.explore.rewrite import RewriteRun, RewriteSettings

    endpoint = _endpoint(options)
    return RewriteRun(
        settings=RewriteSettings(
            endpoint=endpoint,
            solver=replace(endpoint, model=options.solver_model) if options.solver_model else None,
            concurrency=options.concurrency,
            per_minute=options.rpm,
            max_output_tokens=options.max_output_tokens,
            seed=seed,
        ),
        budget=_budget(options, endpoint.model, console),
        journal=options.journal or folder / "rewrite-journal.jsonl",
        retry_failed=options.retry_failed,
    )


def _endpoint(options: LLMOptions) -> EndpointSettings:
    from mcpagent.config.environment import environment
    from mcpagent.llm.endpoint import APIS, EndpointSettings

    env = environment()
    base_url = options.base_url or env.get("OPENAI_BASE_URL") or None
    key = env.get("OPENAI_API_KEY", "")
    if not key and base_url is None:
        raise UserError(
            "OPENAI_API_KEY is not set", remedy="set it, also in .env, or name a server with --base-url"
        )
    # Servers of others speak Chat Completions; OpenAI's own models do more over Responses.
    backend = _chosen(options.backend, env, "OPENAI_BACKEND", "chat" if base_url else "responses")
    if backend not in APIS:
        raise UserError(f"--backend is {backend!r}", remedy="it is responses or chat")
    return EndpointSettings(
        model=_chosen(options.model, env, "OPENAI_MODEL", "gpt-5-mini"),
        backend=backend,
        base_url=base_url,
        api_key=key or _PLACEHOLDER_KEY,
        timeout_s=options.request_timeout,
    )


def _chosen(given: T | None, env: Mapping[str, str], name: str, default: T) -> T:
    """The option, else the environment variable `name`, else the default."""
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


def _complexities(text: str) -> tuple[Any, ...]:
    from mcpagent.synth.llm.prompts import complexity_of

    complexities: dict[str, None] = {}
    for word in _listed(text) or ("simple", "moderate", "complex"):
        complexity = complexity_of(word)
        if complexity is None:
            raise UserError(
                f"--complexities names {word!r}",
                remedy="simple, moderate, complex (or easy, medium, difficult)",
            )
        complexities[complexity] = None
    return tuple(complexities)


def _budget(options: LLMOptions, model: str, console: Console) -> ApiBudget:
    from mcpagent.llm.budget import ApiBudget, given_price, price_of

    given = given_price(options.price_in, options.price_out, names=("--price-in", "--price-out"))
    price = given or price_of(model)
    if price is None:
        console.note(f"{model} has no known price: give --price-in and --price-out to see what it costs")
    elif given is None:
        told = f"${price.input:g} and ${price.output:g} per million tokens in and out"
        console.note(f"{model}: {told} as published in 2025; --price-in and --price-out say otherwise")
    return ApiBudget(price=price, max_cost=options.max_cost, max_requests=options.max_requests)


def _print(document: Mapping[str, Any], console: Console) -> None:
    from mcpagent.synth.llm.generate import failed_requests, option_names

    splits = [(split, document["by_split"][split], path) for split, path in document["paths"].items()]
    if "shard" in document:
        console.say(shard_line(document))
    if splits:
        console.table("Tasks", ("Split", "Tasks", "File"), splits)
    rows = [
        (stage["name"], stage["in"], stage["out"], ", ".join(f"{c} {n}" for c, n in stage["rejects"].items()))
        for stage in document["stages"]
    ]
    console.table("Yield", ("Stage", "In", "Out", "Rejected"), rows, is_text=True)
    for code, texts in document["reject_examples"].items():
        console.say(f"  {code}: {texts[0][:200]}")
    attempts, spend = document["attempts"], document["spend"]
    console.say(f"{document['repaired']} tasks were good after a repair; {attempts['failed']} drafts failed")
    at_most = "at most " if spend["uncertain_requests"] else ""
    cost = "cost unknown" if spend["cost_usd"] is None else f"{at_most}${spend['cost_usd']:.4f}"
    console.say(
        f"{spend['requests']} requests ({spend['answers_from_journal']} answered before this run), "
        f"{spend['input_tokens']} tokens in, {spend['output_tokens']} out, {cost}"
    )
    if document["failed_requests"]["total"]:
        console.say(failed_requests(document))
    console.say(f"{document['executed_calls']} calls over MCP in {document['seconds']:.1f} s")
    console.say(f"Every answer is kept in {document['journal']}")
    if document["unfinished"]:
        console.say(
            f"{document['unfinished']} samples wait: {option_names(document['stopped_by'])} reached. The "
            "same command with a higher cap and --overwrite goes on where this one stopped."
        )
