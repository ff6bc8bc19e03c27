"""BFCL's right answers are Python calls in text: `mv('a.txt', destination='b')`."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from typing import Any

from mcpagent.core.tasks import PlanCall


class CallSyntaxError(ValueError):
    """A right answer that is no single call with literal arguments to a tool of the task."""


def parse_call(text: str, owners: Mapping[str, type[Any]]) -> PlanCall:
    """`owners` maps each tool to the class of its backend, whose signature names positional arguments; the
    class's name is the server's. Raises CallSyntaxError."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise CallSyntaxError(f"{text!r} is not Python: {error.msg}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise CallSyntaxError(f"{text!r} is not one call")
    owner = owners.get(call.func.id)
    if owner is None:
        raise CallSyntaxError(f"{text!r} calls no tool of its task")
    try:
        given = [ast.literal_eval(value) for value in call.args]
        named = {word.arg or "**": ast.literal_eval(word.value) for word in call.keywords}
        signature = inspect.signature(getattr(owner, call.func.id))
        arguments = signature.bind(None, *given, **named).arguments
    except (ValueError, TypeError) as error:
        raise CallSyntaxError(f"{text!r}: {error}") from error
    params = {name: value for name, value in arguments.items() if name != "self"}
    return PlanCall(server=owner.__name__, tool=call.func.id, params=json.loads(json.dumps(params)))
