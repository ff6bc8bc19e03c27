"""Evaluate any provider's model on tasks of mcpagent with Inspect.

inspect eval inspect_eval.py -T data=data/mine -T split=heldout --model openai/gpt-5

In an environment with `pip install "mcpagent[inspect]"`.
"""

# pyright: reportMissingImports=false

from inspect_ai import Task, task

from mcpagent.bridges.inspect_task import mcp_tasks


@task
def my_servers(data: str, split: str = "heldout", max_tokens: int | None = None) -> Task:
    """Return the tasks of one split; `max_tokens` bounds a message of the model."""
    return mcp_tasks(data, split, max_tokens=max_tokens)
