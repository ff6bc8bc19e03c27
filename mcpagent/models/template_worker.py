"""Renders chat templates of strangers, as a program of its own: standard library and jinja2 alone.

Reads one JSON request a line from standard input and writes one JSON answer a line. A render that takes more
time, memory or characters than it may ends the process.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_TEMPLATES = 16  # compiled and kept


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which templates mark what an assistant wrote, as a block of its own scope."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@lru_cache(maxsize=_TEMPLATES)
def _compiled(template: str) -> jinja2.Template:
    """Compile it as transformers does for chat templates (5.x, utils/chat_template_utils.py)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _rendered(request: dict[str, Any], max_chars: int) -> dict[str, str]:
    try:
        text = _compiled(request["template"]).render(**request["variables"])
    except MemoryError:
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - a template is its author's program and fails in its own ways
        return {"error": f"{error}"[:2000] or type(error).__name__}
    if len(text) > max_chars:
        os._exit(1)
    return {"text": text}


def _serve(cpu_s: float, memory_bytes: int, max_chars: int) -> None:
    answers = os.fdopen(1, "w")  # nothing else may write there
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal, left alone, ends the process within C too
        document = json.dumps(_rendered(request, max_chars))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(document + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
