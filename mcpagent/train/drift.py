"""How much of an episode's context a rendering of its whole conversation would have written otherwise.

What was sampled stays in the context as it was sampled, and is trained on. A server that is sent messages
renders them anew: it may leave out earlier thoughts, write calls with other blanks, cut words into other
tokens. Its model then reads what it was not trained on, so every run says how far the two are apart.
"""

from __future__ import annotations

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.env.episode import observations
from mcpagent.env.parsing import parse_action
from mcpagent.errors import UserError
from mcpagent.models.fidelity import Drift, measure_drift
from mcpagent.models.tokens import Renderer, calling_message, tool_message
from mcpagent.train.callbacks import StepReport


class DriftCallback:
    """Adds the drift of one episode a step to its record: the first with a history, since one is enough to
    see what a template does, and its cost stays far below that of a step."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def on_step(self, report: StepReport) -> None:
        played = (t for t in report.trajectories if t.stop_reason is not StopReason.FAILED)
        episode = next((t for t in played if len(t.turns) > 1), None)
        if episode is None:
            return
        try:
            drift = episode_drift(self._renderer, episode)
        except UserError:
            return  # a history that this template cannot render at all, such as an unreadable call's answer
        report.metrics["drift_tokens"] = drift.changed
        report.metrics["drift_share"] = drift.share

    def should_stop(self) -> str | None:
        return None


def episode_drift(renderer: Renderer, episode: Trajectory) -> Drift:
    """Of the context in which the last turn was sampled. Raises UserError where the template does not render
    that conversation."""
    # The tools are left out on both sides: a trajectory does not hold them, and they stand still.
    kept = list(renderer.prompt_ids(episode.prompt, ()))
    messages = list(episode.prompt)
    calls = any(turn.tool_calls for turn in episode.turns) and _knows_calls(renderer)
    for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
        kept += [*turn.completion.token_ids, *following.added_token_ids]
        messages.append(_said(turn.completion.text, renderer.tool_format, calls=calls))
        seen = observations(turn.tool_results, turn.parse_failures, turn.user_message)
        messages += [tool_message(m["content"]) if m["role"] == "tool" else m for m in seen]
    return measure_drift(renderer, kept, messages, ())


def _knows_calls(renderer: Renderer) -> bool:
    """Whether a chat API with this template takes calls as such; otherwise, also where the dialect was taught
    in the system message, they are text."""
    return renderer.instruction is None and renderer.call_text("look", {}, ()) is not None


def _said(text: str, tool_format: str, *, calls: bool) -> JsonObject:
    """A sampled turn as a chat API holds it, with calls apart from text where `calls`."""
    parsed = parse_action(text, tool_format=tool_format)
    said: JsonObject = {"role": "assistant", "content": text.rpartition("</think>")[2].strip()}
    if calls and parsed.calls:
        made = [calling_message(call.tool, call.arguments)["tool_calls"] for call in parsed.calls]
        said |= {"content": parsed.text, "tool_calls": [call for one in made for call in one]}
    return said if parsed.thinking is None else {**said, "reasoning_content": parsed.thinking}
