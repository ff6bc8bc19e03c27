from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mcpagent.cli.main import GC_THRESHOLD

# Examples of a property: `make test` tries some, always the same; `make test-slow` many, others each time.
settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=500, deadline=None)
settings.load_profile("quick")


def pytest_configure() -> None:
    gc.set_threshold(GC_THRESHOLD)  # as in the commands: looking for cycles is a tenth of what tests cost
    # Containers set it; a user's shell does not, and what is written and never flushed shows only without it.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # A shell starts background jobs with SIGINT ignored, nohup does so with SIGHUP, and children inherit it:
    # these signals would test nothing.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What is imported by now stays: a collection that looks through it takes half a second, and each
    loading of a model makes one."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(test := pyfuncitem.obj):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which mcp.json files were named is kept per user; tests have a place of their own for it."""
    folder = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def no_secrets_of_other_tests() -> Iterator[None]:
    """A process learns the secrets that it reads and keeps them; the tests of one process are many users."""
    from mcpagent.core.redact import SECRETS

    SECRETS.clear()
    yield
    SECRETS.clear()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of the embedded kind in Hugging Face format: one layer, 512 tokens, 2048 positions,
    into which the sample tasks fit with the schemas of all their tools."""
    from mcpagent.demo.warm_start import EmbeddedShape, build_model, train_tokenizer
    from mcpagent.env.offer import offer
    from mcpagent.models.load import save_model
    from mcpagent.models.tokens import Renderer
    from mcpagent.servers.provider import builtin_servers
    from mcpagent.storage.datasets import read_tasks
    from mcpagent.tools.pool import ToolPool

    async def prompts() -> list[str]:
        plain = Renderer(train_tokenizer([], vocab_size=0, catalog_hash=""))
        async with ToolPool(builtin_servers()) as pool:
            return [
                plain.render_text(
                    [message.model_dump() for message in task.prompt],
                    offer(pool.tools, task.offered_tools, task_id=task.id).schemas,
                )
                for task in read_tasks(Path(__file__).parents[1] / "data" / "samples" / "train.jsonl")
            ]

    tokenizer = train_tokenizer(asyncio.run(prompts()), vocab_size=512, catalog_hash="tiny")
    shape = EmbeddedShape(vocab_size=512, hidden_size=16, layers=1, heads=2, intermediate_size=32)
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    save_model(build_model(tokenizer, shape=shape, seed=0), tokenizer, folder)
    return folder
