"""Language models behind an OpenAI-compatible API: one request, its retries, its cost."""
