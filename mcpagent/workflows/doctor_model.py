"""Checks of a model for `mcpagent doctor --model`: its tokenizer, template and configuration, no weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mcpagent.core.metrics import CheckResult, CheckStatus
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import find_model
from mcpagent.storage.packages import require

if TYPE_CHECKING:
    from mcpagent.models.fidelity import Drift


def check_model(name: str, *, tool_format: str, catalog: Sequence[ToolSpec]) -> list[CheckResult]:
    """The token fidelity gate, as at the start of a run, and how much a full rendering would differ. The
    first failure ends it: nothing after it could be told."""
    try:
        require("hf", use="checking a model")
    except UserError as error:
        return [_failed("model", error)]
    from mcpagent.env.tool_format import gold_conversation, open_renderer
    from mcpagent.models.fidelity import measure_drift, refuse_forgery
    from mcpagent.models.load import load_config, load_tokenizer
    from mcpagent.models.logits import logit_transform

    checks: list[CheckResult] = []
    try:
        chosen = find_model(name)
        place = name if chosen is None else str(chosen.path)
        tokenizer: Any = load_tokenizer(place)
        why = f" ({chosen.why})" if chosen is not None and chosen.why else ""
        checks.append(_passed("model tokenizer", f"{place}{why}: {len(tokenizer)} tokens"))
        renderer = open_renderer(tokenizer, name=name, tool_format=tool_format)
        how = "in the system message" if renderer.instruction is not None else "by its template"
        checks += [
            _passed("model template", "what follows a turn does not depend on the turns before it"),
            _passed("model tool calls", f"{renderer.tool_format}, taught {how}; a call reads back as it was"),
            _passed(
                "model injection", f"{refuse_forgery(renderer)} control tokens stay text in what tools say"
            ),
        ]
        schemas = [chat_schema(tool.name, tool) for tool in catalog]
        checks.append(_drift(measure_drift(renderer, *gold_conversation(renderer, schemas))))
        after_head = logit_transform(load_config(place))
        checks.append(_passed("model logits", f"the output head's, {after_head or 'unchanged'}"))
    except UserError as error:
        checks.append(_failed("model", error))
    return checks


def _passed(name: str, detail: str) -> CheckResult:
    return CheckResult(name=name, status=CheckStatus.PASS, detail=detail)


def _failed(name: str, error: UserError) -> CheckResult:
    return CheckResult(name=name, status=CheckStatus.FAIL, detail=error.message, remedy=error.remedy)


def _drift(drift: Drift) -> CheckResult:
    """Not a failure: what was sampled is kept and trained on. But a server that is sent messages renders
    each request anew, and then the model reads other tokens than it was trained on."""
    detail = (
        f"{drift.changed} of {drift.kept} tokens ({drift.share:.1%}) of three turns are not "
        "what its whole rendering gives"
    )
    if not drift.changed:
        return _passed("model drift", detail)
    remedy = "serve the trained model from token ids, or with a template that keeps earlier thoughts"
    return CheckResult(name="model drift", status=CheckStatus.WARN, detail=detail, remedy=remedy)
