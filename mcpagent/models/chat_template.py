"""Chat templates as text: those of strangers are rendered by a process that may not take much.

A template is a program, and one of a model folder is its author's. A process of its own bounds it whatever
it does; bounds inside this one would have to know every way in which jinja2 takes time and memory.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mcpagent.config.environment import resource_path
from mcpagent.core.records import JsonObject
from mcpagent.errors import RunError, UserError
from mcpagent.models.tool_schemas import completed, parameters_left_out

RENDER_CPU_S = 2.0  # a prompt takes milliseconds
RENDER_MEMORY_BYTES = 512 * 2**20
RENDER_CHARS = 16 * 2**20
_RENDER_WALL_S = 120.0  # the machine may be busy
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")


def render_chat(
    tokenizer: Any,
    messages: Sequence[JsonObject],
    tools: Sequence[JsonObject],
    *,
    generation: bool,
    name: str,
) -> str:
    """Return what `tokenizer.apply_chat_template` gives as text, `generation` with the header of the next
    turn.

    What the template leaves out of a tool's schema stands in the tool's description. Raises TemplateError if
    the template refuses or fails, UserError if it takes more than it may; `name` names the model there.
    """
    told = [_told(tokenizer, tool, name=name) for tool in tools]
    return _rendered(tokenizer, messages, told, generation=generation, name=name)


def left_out(tokenizer: Any, tool: JsonObject, *, name: str) -> tuple[list[str], list[str]]:
    """Return the parameters of a tool that the template leaves out, and those that a prompt lacks even so."""
    of_template = parameters_left_out(tool, partial(_alone, tokenizer, name=name))
    told = _told(tokenizer, tool, name=name)
    prompt = _alone(tokenizer, told, name=name)
    names = list(dict.fromkeys(str(path[-1]) for path in of_template))
    return names, [each for each in names if each not in prompt]


_MAX_TOLD = 4096
_told_before: dict[tuple[str, str], JsonObject] = {}


def _told(tokenizer: Any, tool: JsonObject, *, name: str) -> JsonObject:
    """Computed once for a template and a tool, which takes a rendering for each nested parameter."""
    key = (tokenizer.get_chat_template(tools=[tool]), json.dumps(tool, sort_keys=True))
    if key not in _told_before:
        if len(_told_before) >= _MAX_TOLD:
            _told_before.clear()
        _told_before[key] = completed(tool, partial(_alone, tokenizer, name=name))
    return _told_before[key]


def _alone(tokenizer: Any, tool: JsonObject, *, name: str) -> str:
    question: JsonObject = {"role": "user", "content": "?"}
    return _rendered(tokenizer, [question], [tool], generation=False, name=name)


def _rendered(
    tokenizer: Any,
    messages: Sequence[JsonObject],
    tools: Sequence[JsonObject],
    *,
    generation: bool,
    name: str,
) -> str:
    template = tokenizer.get_chat_template(tools=list(tools) or None)
    if template in _shipped_templates():
        return tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=generation
        )
    variables = {
        **tokenizer.special_tokens_map,
        "messages": list(messages),
        "tools": list(tools) or None,
        "documents": None,
        "add_generation_prompt": generation,
    }
    request = json.dumps({"template": template, "variables": variables})
    answer = _worker(os.getpid()).ask(request)
    if answer is None:
        raise RenderLimitError(
            f"the chat template of {name} takes more than {RENDER_CPU_S:g} CPU seconds, "
            f"{RENDER_MEMORY_BYTES // 2**20} MiB or {RENDER_CHARS:,} characters to render",
            remedy="use a model whose template can be trusted, or set model.tokenizer to one",
        )
    if "error" in answer:
        raise TemplateError(answer["error"])
    return answer["text"]


@cache
def _shipped_templates() -> frozenset[str]:
    """Return the texts of the templates that ship with mcpagent: they alone are rendered in this process."""
    files = resource_path("templates/chat").glob("*.jinja")
    return frozenset(path.read_text(encoding="utf-8") for path in files)


class RenderLimitError(UserError):
    """A template that takes more than rendering may take."""


class _Worker:
    """The process that renders, started with the first request and anew after one that ended it. Safe to use
    from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: str) -> dict[str, str] | None:
        """Return the answer; None if the process ended over it."""
        with self._lock:
            process = self._process = self._process or _started()
            answer = None
            try:
                answer = _exchange(process, request)
            finally:
                if answer is None:  # also if it is interrupted: an answer may be under way
                    self._end()
            return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):  # of what is left in its buffer
                        pipe.close()


def _exchange(process: subprocess.Popen[bytes], request: str) -> dict[str, str] | None:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request.encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    is_ready = select.select([process.stdout], [], [], _RENDER_WALL_S)[0]
    line = process.stdout.readline() if is_ready else b""
    return json.loads(line) if line.endswith(b"\n") else None


@cache
def _worker(process_id: int) -> _Worker:
    """One for each process: a fork shares no pipes with its parent."""
    return _Worker()


def _started() -> subprocess.Popen[bytes]:
    worker = Path(__file__).with_name("template_worker.py")
    limits = map(str, (RENDER_CPU_S, RENDER_MEMORY_BYTES, RENDER_CHARS))
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(worker), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(f"cannot start the process that renders chat templates: {error.strerror}") from error
