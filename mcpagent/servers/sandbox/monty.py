"""The portable sandbox: Monty, an interpreter of a subset of Python that has no way to reach anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pydantic import JsonValue

from mcpagent.servers.sandbox.contract import AT_ONCE, Limits, Outcome, SandboxBroken, SandboxUnavailable
from mcpagent.servers.sandbox.jail.values import jsonable
from mcpagent.servers.text import clean_text
from mcpagent.storage.packages import pip_install

try:
    import pydantic_monty
except ImportError:
    pydantic_monty = None

_GRACE_S = 2.0  # after which a worker that does not stop by itself is killed


class MontySandbox:
    """Each call gets a worker process of its own, which starts in a few ms. Raises SandboxUnavailable where
    the package is missing."""

    name = "monty"
    language = "Monty, a subset of Python"

    def __init__(self, limits: Limits) -> None:
        if pydantic_monty is None:
            raise SandboxUnavailable(f"pydantic-monty is not installed ({pip_install('mcpagent[servers]')})")
        self.version = pydantic_monty.__version__
        self._limits = limits
        # Its asynchronous form was seen to abort the process as the interpreter ends.
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="sandbox-monty")

    async def run(self, code: str, names: Mapping[str, JsonValue]) -> Outcome:
        return await asyncio.wrap_future(self._threads.submit(self.run_blocking, code, names))

    def run_blocking(self, code: str, names: Mapping[str, JsonValue]) -> Outcome:
        """As `run`, where no event loop runs."""
        assert pydantic_monty is not None
        limits = self._limits
        printed = pydantic_monty.CollectString(limits.output_bytes)
        try:
            with (
                pydantic_monty.Monty(max_processes=1, request_timeout=limits.wall_s + _GRACE_S) as pool,
                pool.checkout(
                    limits={
                        "max_feed_duration_secs": limits.cpu_s,
                        "max_total_sleep_secs": limits.wall_s - limits.cpu_s,
                        "max_memory": limits.memory_bytes,
                    },
                ) as session,
            ):
                value = session.feed_run(clean_text(code), inputs=dict(names), print_callback=printed)
                return self._finished(value, output=printed.output)
        except (pydantic_monty.MontyRuntimeError, pydantic_monty.MontySyntaxError) as error:
            frames = error.traceback()
            line = frames[-1].line if frames else None
            return self._failed(error.display("type-msg"), output=printed.output, line=line)
        except pydantic_monty.MontyCrashedError as error:
            return self._failed(f"The interpreter ended: {error}", output=printed.output)
        except (pydantic_monty.MontyConversionError, ValueError, RecursionError) as error:
            return self._failed(f"The result cannot be shown: {error}", output=printed.output)
        except OSError as error:
            raise SandboxBroken(f"Monty does not start: {error}") from error

    def _finished(self, value: object, *, output: str) -> Outcome:
        shown = jsonable(value, clean=clean_text)
        if len(repr(shown)) > self._limits.result_bytes:
            return self._failed(f"The result has more than {self._limits.result_bytes} bytes.", output=output)
        return Outcome(output=clean_text(output), value=shown)

    def _failed(self, error: str, *, output: str, line: int | None = None) -> Outcome:
        text = f"{error} [{self.language}]"
        return Outcome(error=clean_text(text), output=clean_text(output[:2000]), line=line)
