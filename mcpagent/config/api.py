"""Settings of models behind an API."""

from __future__ import annotations

from mcpagent.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section


class ApiConfig(Section):
    """A Chat Completions API; used where the policy is `openai:NAME`. Its key is OPENAI_API_KEY, from the
    environment or `.env`."""

    base_url: str | None = None  # of an OpenAI-compatible server; None: OpenAI's own
    max_in_flight: PositiveInt = 8  # requests at once
    calls_per_minute: PositiveFloat | None = None  # spaced evenly; None: no limit
    timeout_s: PositiveFloat = 120.0  # deadline of one attempt
    attempts: PositiveInt = 6  # at one request, the waits that the server asks for between them
    price_in: NonNegativeFloat | None = None  # dollars per million tokens
    price_out: NonNegativeFloat | None = None
