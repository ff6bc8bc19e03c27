"""The half of `mcpagent gen-data` that asks a model: its settings, its run, its report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mcpagent.cli.options import LLMOptions
from mcpagent.errors import RunError, UserError
from mcpagent.llm.contract import FailureReason

if TYPE_CHECKING:
    from mcpagent.config.dataset_servers import DatasetServers
    from mcpagent.config.schema import ToolsConfig
    from mcpagent.console import Console
    from mcpagent.core.records import JsonObject
    from mcpagent.llm.budget import ApiBudget
    from mcpagent.synth.llm.generate import Asking, GeneratedByModel, Wanted
    from mcpagent.synth.llm.sample import SampleOutcome

T = TypeVar("T", int, str)

JOURNAL = "llm-journal.jsonl"
_ACCOUNT = ("finished", "unfinished", "stopped_by", "rejects", "failed_requests", "spend")  # of an error
_PLACEHOLDER_KEY = "unused"  # the SDK insists on one; servers of one's own seldom do


def run_llm(
    options: LLMOptions,
    tools: ToolsConfig,
    console: Console,
    *,
    counts: Mapping[str, int],
    seed: int,
    distractors: int | None,
    out: Path,
    servers: DatasetServers,
    overwrite: bool,
) -> None:
    """Generate, write the splits, and print what became of every sample. Raises UserError and RunError."""
    from mcpagent.config.environment import resource_path
    from mcpagent.synth.llm.prompts import load_prompts
    from mcpagent.synth.tasks.output import write_splits

    started = time.perf_counter()
    prompts = load_prompts(options.prompts or resource_path("templates/prompts/tasks.yaml"))
    wanted, asking = _settings(options, tools, seed=seed, distractors=distractors)
    budget = _budget(options, asking.endpoint.model, console)
    journal = options.journal or out / JOURNAL
    try:
        data = _generate(options, tools, console, wanted, asking, budget, prompts, counts, journal)
    except KeyboardInterrupt:
        console.note(f"{journal} has every answer so far: the same command goes on from there")
        raise
    tasks = {split: members for split, members in data.tasks.items() if members}
    paths = write_splits(tasks, out, servers=servers, overwrite=overwrite) if tasks else {}
    document = _document(data, paths, tasks)
    document |= {
        "model": asking.endpoint.model,
        "backend": asking.endpoint.backend,
        "prompts_sha256": prompts.sha256,
        "journal": str(journal),
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 3),
    }
    lacking = {split: (0, count) for split, count in counts.items() if count and split not in tasks}
    if tasks and lacking:
        document["short"] = {split: {"made": 0, "asked": n} for split, (_, n) in lacking.items()}
        groups = f"the {document['records']} tasks are too few, or share too many entities, to be divided"
        console.note(f"{' and '.join(lacking)} got no task and no file: {groups}; ask for more samples")
    if console.is_json and tasks:
        console.print_json(document)
    else:
        _print(document, console)
    if not tasks:
        raise _no_task(document)
    lost = {reason: n for reason, n in document["rejects"].items() if reason in set(FailureReason)}
    if lost:
        console.note(f"given up: {_counted(lost)}; {_remedy_of(lost, has_tasks=True)}")


def _no_task(document: Mapping[str, Any]) -> RunError:
    """Why there is not one task: what the service did, and at which checks the finished samples failed."""
    from mcpagent.console import counted

    failed, rejects = document["failed_requests"], document["rejects"]
    requests, caps = document["spend"]["requests"], _caps(document["stopped_by"])
    if document["finished"]:
        message = f"none of {document['finished']} finished samples became a task ({_counted(rejects)})"
    else:
        message = f"no sample was finished in {counted(requests, 'request')}"
    if caps:
        message += f", and {caps} is reached"
    if failed["total"]:
        message += f"; {_described(failed, requests)}"
    remedy = _remedy_of(failed["reasons"], caps=caps)
    account = {name: document[name] for name in _ACCOUNT}
    return RunError(message, where=document["journal"], remedy=remedy, details=account)


def _described(failed: Mapping[str, Any], requests: int) -> str:
    """What became of the requests without an answer: counts by reason, each with what was said first."""
    told = ", ".join(
        f"{reason} {n} ({failed['examples'][reason]:.120})" for reason, n in failed["reasons"].items()
    )
    return f"{failed['total']} of {requests} requests had no answer: {told}"


def _remedy_of(reasons: Mapping[str, int], *, caps: str = "", has_tasks: bool = False) -> str:
    """What to change before the same command is run again, by what the service did."""
    changes: list[str] = []
    if FailureReason.RATE_LIMITED in reasons:
        changes.append("ask more slowly with --rpm")
    if FailureReason.TIMED_OUT in reasons:
        changes.append("give an answer more time with --request-timeout")
    if reasons.keys() & {FailureReason.SERVER_ERROR, FailureReason.CONNECTION, FailureReason.BAD_BODY}:
        changes.append("wait until the service is well")
    if FailureReason.BAD_REQUEST in reasons:
        changes.append("check --model and --max-output-tokens against what the service says")
    if caps:
        changes.append(f"raise {caps}")
    if not changes:
        return "the yield table says at which stage they failed; the journal holds every answer"
    again = "--retry-failed --overwrite" if has_tasks else "--retry-failed"
    return f"{' and '.join(changes)}; {again} asks again what was given up, and nothing that was answered"


def _caps(names: Sequence[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def _settings(
    options: LLMOptions, tools: ToolsConfig, *, seed: int, distractors: int | None
) -> tuple[Wanted, Asking]:
    from mcpagent.config.environment import environment
    from mcpagent.llm.endpoint import BACKENDS, EndpointSettings
    from mcpagent.synth.llm.generate import Asking, Wanted
    from mcpagent.synth.llm.prompts import load_curriculum

    env = environment()
    base_url = options.base_url or env.get("OPENAI_BASE_URL") or None
    key = env.get("OPENAI_API_KEY", "")
    if not key and base_url is None:
        raise UserError(
            "OPENAI_API_KEY is not set", remedy="set it, also in .env, or name a server with --base-url"
        )
    # Servers of others speak Chat Completions; OpenAI's own models do more over Responses.
    backend = _chosen(options.backend, env, "OPENAI_BACKEND", "chat" if base_url else "responses")
    if backend not in BACKENDS:
        raise UserError(f"--backend is {backend!r}", remedy="it is responses or chat")
    endpoint = EndpointSettings(
        model=_chosen(options.model, env, "OPENAI_MODEL", "gpt-5-mini"),
        backend=backend,
        base_url=base_url,
        api_key=key or _PLACEHOLDER_KEY,
        timeout_s=options.request_timeout,
    )
    domains = _chosen(options.domains, env, "DOMAINS", "whatever these tools are for")
    wanted = Wanted(
        samples=_chosen(options.samples, env, "N_SAMPLES", 20),
        max_tools=_chosen(options.max_tools, env, "MAX_TOOLS", 4),
        max_turns=_chosen(options.max_turns, env, "MAX_TURNS", 8),
        domains=_listed(domains),
        complexities=_complexities(_chosen(options.complexities, env, "COMPLEXITIES", "")),
        curriculum=load_curriculum(options.curriculum) if options.curriculum else (),
        distractors=distractors,
        votes=options.votes,
        repairs=options.repairs,
        may_write=options.allow_writes or tools.servers is None,  # the built-in ones are embedded here
        seed=seed,
    )
    asking = Asking(
        endpoint=endpoint,
        concurrency=options.concurrency,
        per_minute=options.rpm,
        max_output_tokens=options.max_output_tokens,
    )
    return wanted, asking


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

    found: dict[str, None] = {}
    for word in _listed(text) or ("simple", "moderate", "complex"):
        complexity = complexity_of(word)
        if complexity is None:
            raise UserError(
                f"--complexities names {word!r}",
                remedy="simple, moderate, complex (or easy, medium, difficult)",
            )
        found[complexity] = None
    return tuple(found)


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


def _generate(
    options: LLMOptions,
    tools: ToolsConfig,
    console: Console,
    wanted: Wanted,
    asking: Asking,
    budget: ApiBudget,
    prompts: Any,
    counts: Mapping[str, int],
    journal: Path,
) -> GeneratedByModel:
    from mcpagent.llm.endpoint import read_chat, read_responses
    from mcpagent.rollout.setup import open_tools
    from mcpagent.synth.llm.generate import generate_with_model
    from mcpagent.synth.llm.journal import Journal
    from mcpagent.synth.llm.prompts import unresolved_aliases
    from mcpagent.synth.templates.pools import SplitShares

    total = sum(counts.values()) or 1
    shares = SplitShares(heldout=counts["heldout"] / total, validation=counts["validation"] / total)

    def open_journal(run: JsonObject) -> Journal:
        read = read_chat if asking.endpoint.backend == "chat" else read_responses
        return Journal(journal, run=run, read=read, retry_failed=options.retry_failed)

    with (
        open_tools(tools, on_note=console.note) as opened,
        console.progress("Samples", total=wanted.samples) as advance,
    ):
        if unknown := unresolved_aliases(wanted.curriculum, tuple(opened.pool.tools.values())):
            console.note(f"{options.curriculum}: no tool is meant by {', '.join(unknown)}; ignored")
        kept = 0

        def on_progress(outcome: SampleOutcome) -> None:
            nonlocal kept
            kept += outcome.executed is not None
            cost = budget.cost
            spent = "" if cost is None else f", ${cost:.4f}"
            advance(1, note=f"{kept} good, {budget.requests} requests{spent}")

        return opened.io.run(
            generate_with_model(
                opened.pool,
                prompts,
                wanted=wanted,
                asking=asking,
                budget=budget,
                open_journal=open_journal,
                shares=shares,
                splits=[split for split, count in counts.items() if count],
                on_note=console.note,
                on_progress=on_progress,
            )
        )


def _document(data: GeneratedByModel, paths: Mapping[str, Path], tasks: Mapping[str, Any]) -> JsonObject:
    from mcpagent.synth.datasets.describe import count_tasks

    counted = count_tasks(task for members in tasks.values() for task in members).as_json()
    return {
        "records": counted["records"],
        **{name: counted[name] for name in counted if name.startswith("by_")},
        **data.yields,
        "failed_requests": data.failures,
        "spend": {**data.spend, "answers_from_journal": data.from_journal},
        "executed_calls": data.executed_calls,
        "paths": {split: str(path) for split, path in paths.items()},
        "catalog_hash": data.catalog_hash,
    }


def _print(document: Mapping[str, Any], console: Console) -> None:
    splits = [(split, document["by_split"][split], path) for split, path in document["paths"].items()]
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
        console.say(_described(document["failed_requests"], spend["requests"]))
    console.say(f"{document['executed_calls']} calls over MCP in {document['seconds']:.1f} s")
    console.say(f"Every answer is kept in {document['journal']}")
    if document["unfinished"]:
        console.say(
            f"{document['unfinished']} samples wait: {_caps(document['stopped_by'])} reached. The same "
            "command with a higher cap and --overwrite goes on where this one stopped."
        )
