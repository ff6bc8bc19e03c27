"""The options of `gen-data --llm`. Environment variables count in `.env` too; an option wins over them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PANEL = "With --llm"


def _option(*names: str, help: str, minimum: float | None = None) -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, min=minimum, rich_help_panel=_PANEL)


NSamples = Annotated[
    int | None,
    _option(
        "--n-samples",
        minimum=1,
        help="Samples to ask for; each becomes a task or a counted reject. "
        "Environment: N_SAMPLES. Default: 20.",
    ),
]
Model = Annotated[str | None, _option("--model", help="Environment: OPENAI_MODEL. Default: gpt-5-mini.")]
BackendName = Annotated[
    str | None,
    _option(
        "--backend",
        help="The API: responses or chat. Environment: OPENAI_BACKEND. Default: responses, "
        "chat with --base-url.",
    ),
]
BaseUrl = Annotated[
    str | None,
    _option("--base-url", help="Any OpenAI-compatible server. Environment: OPENAI_BASE_URL."),
]
MaxTools = Annotated[
    int | None,
    _option("--max-tools", minimum=1, help="Calls of a plan, at most. Environment: MAX_TOOLS. Default: 4."),
]
MaxTurns = Annotated[
    int | None,
    _option("--max-turns", minimum=2, help="Turns of an episode. Environment: MAX_TURNS. Default: 8."),
]
Domains = Annotated[
    str | None,
    _option(
        "--domains", help="Subjects, separated by commas; one is drawn for each sample. Environment: DOMAINS."
    ),
]
Complexities = Annotated[
    str | None,
    _option(
        "--complexities",
        help="Of simple, moderate, complex, separated by commas. Environment: "
        "COMPLEXITIES. Default: all three.",
    ),
]
Curriculum = Annotated[
    Path | None,
    _option(
        "--curriculum",
        help="A JSON array of prompts (id, complexity, user_prompt, likely_tools, "
        "why_multi_turn) to take up in turn.",
    ),
]
PromptsFile = Annotated[
    Path | None,
    _option("--prompts", help="What the model is told. Default: the file that ships with mcpagent."),
]
Votes = Annotated[
    int, _option("--votes", minimum=0, help="Members of the committee; more than half must accept. 0: none.")
]
Repairs = Annotated[
    int,
    _option("--repairs", minimum=0, help="How often a failed task goes back to the model with the reason."),
]
AllowWrites = Annotated[
    bool,
    _option(
        "--allow-writes", help="Let plans call tools of --servers that are not read-only: they are executed."
    ),
]
Concurrency = Annotated[int, _option("--concurrency", minimum=1, help="Requests in flight, at most.")]
Rpm = Annotated[float | None, _option("--rpm", minimum=0.1, help="Requests a minute. Default: no limit.")]
RequestTimeout = Annotated[
    float, _option("--request-timeout", minimum=0.1, help="Seconds for one whole answer.")
]
MaxOutputTokens = Annotated[
    int, _option("--max-output-tokens", minimum=1, help="Of one answer, reasoning included.")
]
MaxRequests = Annotated[
    int | None,
    _option(
        "--max-requests",
        minimum=1,
        help="Requests in all, retries and those of earlier runs of the journal included.",
    ),
]
MaxCost = Annotated[
    float | None,
    _option("--max-cost", minimum=0.0, help="US dollars in all; no request is sent that could pass it."),
]
PriceIn = Annotated[
    float | None,
    _option("--price-in", minimum=0.0, help="US dollars per million input tokens. Default: a small table."),
]
PriceOut = Annotated[
    float | None, _option("--price-out", minimum=0.0, help="US dollars per million output tokens.")
]
JournalFile = Annotated[
    Path | None, _option("--journal", help="Where every answer is kept. Default: llm-journal.jsonl in --out.")
]
RetryFailed = Annotated[
    bool,
    _option("--retry-failed", help="Ask again what the service failed to answer in an earlier run."),
]
