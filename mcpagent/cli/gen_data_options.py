"""The options of `gen-data --llm`. Environment variables count in `.env` too; an option wins over them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


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
