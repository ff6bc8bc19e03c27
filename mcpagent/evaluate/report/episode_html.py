"""One episode as HTML: its turns, calls, results, reward terms, and how likely the model held its words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from mcpagent.core.hidden_text import printable
from mcpagent.core.tasks import Task
from mcpagent.core.tools import NONCE_META_KEY, ToolCall, ToolResult
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.evaluate.report.episodes import gold_calls, gold_plan, question
from mcpagent.evaluate.report.run_data import ABSENT, TaskPair, number

SHOWN_CHARS = 4000  # of any one text; the stored trajectory has the rest
_SHOWN_TOKENS = 1500  # of one completion
Pieces = Callable[[Sequence[int]], list[str]]  # the text of each token id


def pair_html(pair: TaskPair, *, labels: tuple[str, str], opened: bool) -> str:
    """One task as a collapsible card with its attempts side by side, below `labels`."""
    trajectory = pair.after or pair.before
    if trajectory is None:
        raise ValueError(f"task {pair.task_id} has no trajectory")
    sides = [(labels[0], pair.before), (labels[1], pair.after)]
    badges = " → ".join(_badge(t) for _, t in sides if t is not None)
    columns = "".join(_side_html(label, t) for label, t in sides if t is not None)
    return (
        f'<details class="pair card"{" open" if opened else ""}>'
        f'<summary><span class="question">{_text(question(trajectory))}</span><span>{badges}</span></summary>'
        f'<div class="task"><span class="muted">task</span> <span class="mono">{escape(pair.task_id)}</span>'
        f' <span class="muted">· {escape(trajectory.complexity)}</span>{_system_prompt(trajectory)}</div>'
        f'<div class="sides">{columns}</div></details>'
    )


def episode_html(
    trajectory: Trajectory,
    *,
    label: str,
    task: Task | None = None,
    relative: float | None = None,
    pieces: Pieces | None = None,
) -> str:
    """One episode below `label`, beside the gold calls of its task where that is given. `relative` is its
    reward minus the mean of its group; with `pieces`, the words that the model wrote carry their logprobs."""
    gold = "" if task is None else _gold_html(task, trajectory)
    aside = f'<section class="side"><header><h4>Gold calls</h4></header>{gold}</section>' if gold else ""
    return (
        f'<div class="task"><span class="muted">task</span> '
        f'<span class="mono">{escape(trajectory.task_id)}</span> <span class="muted">· '
        f"{escape(trajectory.complexity)} · attempt {trajectory.attempt + 1}</span>"
        f"{_system_prompt(trajectory)}</div>"
        f'<div class="sides">{_side_html(label, trajectory, relative=relative, pieces=pieces)}{aside}</div>'
    )


_GOLD_BADGES = {
    "exact": ("pass", "✓ made"),
    "called": ("fail", "✗ other arguments"),
    "missing": ("fail", "✗ not made"),
}


def _gold_html(task: Task, trajectory: Trajectory) -> str:
    """Each gold call, whether the episode made it, and the arguments that differ."""
    if task.truth.abstain:
        return "".join(f'<pre class="call">{_text(line)}</pre>' for line in gold_plan(task))
    html = ""
    for gold in gold_calls(task, trajectory):
        css, label = _GOLD_BADGES[gold.outcome]
        html += f'<pre class="call">{_text(gold.text)}</pre>'
        html += f'<p class="note"><span class="badge {css}">{label}</span>'
        html += "".join(f' <code class="differs">{_text(each)}</code>' for each in gold.differing) + "</p>"
    return html


def token_pieces(run_dir: Path) -> Pieces | None:
    """The texts of token ids as the tokenizer of the run's checkpoints has them; None without one."""
    path = next(iter(sorted(run_dir.glob("checkpoints/*/tokenizer.json"))), None)
    if path is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(path))
    return lambda token_ids: [tokenizer.decode([each], skip_special_tokens=False) for each in token_ids]


def _system_prompt(trajectory: Trajectory) -> str:
    said = (str(m.get("content", "")) for m in trajectory.prompt if m.get("role") == "system")
    system = next(said, None)
    return "" if system is None else _folded("System prompt", f"<pre>{_text(system)}</pre>")


def _badge(trajectory: Trajectory) -> str:
    match trajectory.is_success:
        case True:
            return '<span class="badge pass">✓ success</span>'
        case False:
            return '<span class="badge fail">✗ failure</span>'
        case None:
            return '<span class="badge open">unscored</span>'


def _side_html(
    label: str, trajectory: Trajectory, *, relative: float | None = None, pieces: Pieces | None = None
) -> str:
    turns = "".join(_turn_html(t, pieces) for t in trajectory.turns)
    against = "" if relative is None else f" ({number(relative, digits=2, signed=True)} against its group)"
    errors = "".join(f'<pre class="error">{_text(e)}</pre>' for e in trajectory.errors)
    return (
        f'<section class="side"><header><h4>{escape(label)}</h4>{_badge(trajectory)}'
        f'<span class="muted">reward {number(trajectory.reward, digits=2)}{against} · '
        f"stopped: {escape(trajectory.stop_reason.value.replace('_', ' '))}</span></header>"
        f"{turns}{errors}{_judgement_html(trajectory)}{_terms_html(trajectory)}</section>"
    )


def _turn_html(turn: Turn, pieces: Pieces | None) -> str:
    results = {r.call_id: r for r in turn.tool_results}
    parts = [_call_html(call, results.get(call.id)) for call in turn.tool_calls]
    parts += [
        f'<pre class="error">{_text(f.raw)}</pre><p class="note">did not parse: {escape(f.reason)}</p>'
        for f in turn.parse_failures
    ]
    written = _shaded(turn, pieces) or f"<pre>{_text(turn.completion.text)}</pre>"
    if parts:
        parts.append(_folded("as the model wrote it", written))
    elif written.startswith('<pre class="tokens"'):
        parts.append(written)
    else:
        parts.append(f'<p class="text">{_text(turn.completion.text) or "<i>(nothing)</i>"}</p>')
    if turn.user_message is not None:
        parts.append(f'<p class="who">user</p><p class="text">{_text(turn.user_message)}</p>')
    who = f"turn {turn.index + 1} · model" + (" calls" if turn.tool_calls else "")
    if nats := turn.completion.logprobs:
        mean, least = sum(nats) / len(nats), min(nats)
        who += f" · {len(nats)} tokens, logprob {number(mean, digits=2)}, least {number(least, digits=2)}"
    return f'<div class="turn"><p class="who">{who}</p>{"".join(parts)}</div>'


def _shaded(turn: Turn, pieces: Pieces | None) -> str:
    """The tokens of a completion with their lengths and logprobs as attributes, which the page's script turns
    into shades; '' where they are not known or too many."""
    done = turn.completion
    if pieces is None or not 0 < len(done.logprobs) == len(done.token_ids) <= _SHOWN_TOKENS:
        return ""
    texts = [printable(text) for text in pieces(done.token_ids)]
    lengths = ",".join(
        str(len(text.encode("utf-16-le", "surrogatepass")) // 2) for text in texts
    )  # as JavaScript counts
    tenths = ",".join(str(round(-10 * nats)) for nats in done.logprobs)
    return f'<pre class="tokens" data-lengths="{lengths}" data-nats="{tenths}">{escape("".join(texts))}</pre>'


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


def _judgement_html(trajectory: Trajectory) -> str:
    """What the judge said of it, each vote with its answer."""
    said = trajectory.judgement
    if said is None:
        return ""
    names = {True: "success", False: "failure", None: "no verdict"}
    votes = [(f"vote {place}", vote) for place, vote in enumerate(said.votes, start=1)]
    if said.control is not None:
        votes.append(("under a rubric that demands the opposite", said.control))
    html = "" if said.error is None else f'<pre class="error">{_text(said.error)}</pre>'
    for title, vote in votes:
        why = "" if vote.fault is None else f" ({_text(vote.fault)})"
        answer = "" if vote.answer is None else f"<pre>{_text(vote.answer)}</pre>"
        html += f'<p class="who">{title}: {names[vote.verdict]}{why}</p>{answer}'
    return _folded(f"Judge {_text(said.model)}: {names[said.verdict]}", html)


def _folded(title: str, content: str) -> str:
    return f'<details class="small"><summary>{title}</summary>{content}</details>'


def _text(text: str) -> str:
    """Escaped, and cut where it is very long."""
    if len(text) <= SHOWN_CHARS:
        return escape(text)
    cut = len(text) - SHOWN_CHARS
    return f"{escape(text[:SHOWN_CHARS])}\n[{cut:,} more characters in the stored trajectory]"
