"""Whether an answer is judged right, after a question and what one call showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcpagent.reward.text.phrasing import AnswerContext

from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.tools import ToolResult
from mcpagent.reward.answer import answer_holds


def holds(
    check: AnswerCheck | dict[str, Any],
    answer: str,
    *,
    said: str,
    shown: str,
    on_line: bool = False,
    tool: str = "get",
) -> bool:
    """Judge `answer` to the question `said`: as the answer line, or as a free text."""
    result = ToolResult(call_id="c", server="s", tool=tool, content=shown)
    context = AnswerContext(said=said, results=(result,))
    text = f"Answer: {answer}" if on_line else answer
    return answer_holds(AnswerCheck.model_validate(check), text, {}, context, on_line=on_line)


def those_that_hold(
    check: dict[str, Any], answers: Sequence[str], *, said: str, shown: str, on_line: bool
) -> list[str]:
    return [text for text in answers if holds(check, text, said=said, shown=shown, on_line=on_line)]
