"""Trajectories that a person reads turn by turn: which ones, and how they look. All text is escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from mcpagent.core.tools import NONCE_META_KEY, ToolCall, ToolResult
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.evaluate.report.run_data import ABSENT, TaskPair, number
from mcpagent.evaluate.summary import COMPLEXITIES

SHOWN_CHARS = 4000  # of any one text; the stored trajectory has the rest
# (succeeded before, succeeded after, how many are shown): learned, still failing, got worse, always right.
FATES = ((False, True, 3), (False, False, 2), (True, False, 2), (True, True, 1))


def choose(pairs: Sequence[TaskPair]) -> list[TaskPair]:
    """A handful of tasks, failures and regressions included, the hardest first within each outcome.

    Without tasks that have both sides: up to three successes and three failures of the side that is there.
    """
    ranked = sorted(pairs, key=lambda p: (-_difficulty(p), p.task_id))
    both = [p for p in ranked if p.before is not None and p.after is not None]
    shown: list[TaskPair] = []
    if both:
        for before, after, count in FATES:
            fate = [p for p in both if (_succeeded(p.before), _succeeded(p.after)) == (before, after)]
            shown += fate[:count]
    else:
        for success in (True, False):
            shown += [p for p in ranked if _succeeded(p.after or p.before) is success][:3]
    return shown


def pair_html(pair: TaskPair, *, labels: tuple[str, str], opened: bool) -> str:
    """One task as a collapsible card with its attempts side by side, below `labels`."""
    trajectory = pair.after or pair.before
    if trajectory is None:
        raise ValueError(f"task {pair.task_id} has no trajectory")
    sides = [(labels[0], pair.before), (labels[1], pair.after)]
    badges = " → ".join(_badge(t) for _, t in sides if t is not None)
    question = _message(trajectory, "user") or trajectory.task_id
    system = _message(trajectory, "system")
    prompt = "" if system is None else _folded("System prompt", f"<pre>{_text(system)}</pre>")
    columns = "".join(_side_html(label, t) for label, t in sides if t is not None)
    return (
        f'<details class="pair card"{" open" if opened else ""}>'
        f'<summary><span class="question">{_text(question)}</span><span>{badges}</span></summary>'
        f'<div class="task"><span class="muted">task</span> <span class="mono">{escape(pair.task_id)}</span>'
        f' <span class="muted">· {escape(trajectory.complexity)}</span>{prompt}</div>'
        f'<div class="sides">{columns}</div></details>'
    )


def _difficulty(pair: TaskPair) -> int:
    trajectory = pair.after or pair.before
    return (
        COMPLEXITIES.index(trajectory.complexity)
        if trajectory and trajectory.complexity in COMPLEXITIES
        else -1
    )


def _message(trajectory: Trajectory, role: str) -> str | None:
    return next((str(m.get("content", "")) for m in trajectory.prompt if m.get("role") == role), None)


def _succeeded(trajectory: Trajectory | None) -> bool | None:
    return None if trajectory is None else trajectory.is_success


def _badge(trajectory: Trajectory) -> str:
    match trajectory.is_success:
        case True:
            return '<span class="badge pass">✓ success</span>'
        case False:
            return '<span class="badge fail">✗ failure</span>'
        case None:
            return '<span class="badge open">unscored</span>'


def _side_html(label: str, trajectory: Trajectory) -> str:
    turns = "".join(_turn_html(t) for t in trajectory.turns)
    errors = "".join(f'<pre class="error">{_text(e)}</pre>' for e in trajectory.errors)
    return (
        f'<section class="side"><header><h4>{label}</h4>{_badge(trajectory)}'
        f'<span class="muted">reward {number(trajectory.reward, digits=2)} · '
        f"stopped: {escape(trajectory.stop_reason.value.replace('_', ' '))}</span></header>"
        f"{turns}{errors}{_terms_html(trajectory)}</section>"
    )


def _turn_html(turn: Turn) -> str:
    results = {r.call_id: r for r in turn.tool_results}
    parts = [_call_html(call, results.get(call.id)) for call in turn.tool_calls]
    parts += [
        f'<pre class="error">{_text(f.raw)}</pre><p class="note">did not parse: {escape(f.reason)}</p>'
        for f in turn.parse_failures
    ]
    if parts:
        parts.append(_folded("as the model wrote it", f"<pre>{_text(turn.completion.text)}</pre>"))
    else:
        parts.append(f'<p class="text">{_text(turn.completion.text) or "<i>(nothing)</i>"}</p>')
    if turn.user_message is not None:
        parts.append(f'<p class="who">user</p><p class="text">{_text(turn.user_message)}</p>')
    who = f"turn {turn.index + 1} · model" + (" calls" if turn.tool_calls else "")
    return f'<div class="turn"><p class="who">{who}</p>{"".join(parts)}</div>'


def _call_html(call: ToolCall, result: ToolResult | None) -> str:
    name = f"{call.server}.{call.tool}" if call.server else call.tool
    arguments = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in call.arguments.items())
    head = f'<pre class="call">{_text(f"{name}({arguments})")}</pre>'
    if result is None:
        return head + '<p class="note">not executed</p>'
    facts = [f"{1000 * result.latency_s:.1f} ms"]
    if result.failure is not None:
        facts.insert(0, result.failure.value.replace("_", " "))
    if result.truncated_chars:
        facts.append(f"{result.truncated_chars:,} characters cut for the model")
    nonce = result.meta.get(NONCE_META_KEY)
    if result.loaded is not None:
        facts.append(f"search, {len(result.loaded)} tools loaded")
    elif result.from_cassette:
        facts.append("from cassette")  # no server was asked, so that there is no nonce
    else:
        facts.append("no nonce" if nonce is None else f"nonce {nonce}")
    style = ' class="error"' if result.is_error else ""
    return f'{head}<pre{style}>{_text(result.content)}</pre><p class="note">{escape(" · ".join(facts))}</p>'


def _terms_html(trajectory: Trajectory) -> str:
    if not trajectory.reward_terms:
        return ""
    rows = "".join(
        f'<tr><th>{escape(t.name)}</th><td class="num">{number(t.value)}</td>'
        f'<td class="num">{number(t.weight, digits=2) if t.weight else ABSENT}</td></tr>'
        for t in trajectory.reward_terms
    )
    table = (
        '<table class="terms"><thead><tr><th>term</th><th class="num">value</th><th class="num">weight</th>'
        f"</tr></thead><tbody>{rows}</tbody></table>"
    )
    return _folded("Reward terms", table)


def _folded(title: str, content: str) -> str:
    return f'<details class="small"><summary>{title}</summary>{content}</details>'


def _text(text: str) -> str:
    """Escaped, and cut where it is very long."""
    if len(text) <= SHOWN_CHARS:
        return escape(text)
    cut = len(text) - SHOWN_CHARS
    return f"{escape(text[:SHOWN_CHARS])}\n[{cut:,} more characters in the stored trajectory]"
