"""Episodes for the templates: what a reader of one sees, turn by turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from mcpagent.core.hidden_text import printable
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolCall
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.evaluate.report.episodes import OUTCOMES, called, gold_calls, question
from mcpagent.evaluate.report.numbers import number
from mcpagent.evaluate.report.run_data import TaskPair
from mcpagent.evaluate.report.template import render

_SHOWN_TOKENS = 1500  # of one completion
Pieces = Callable[[Sequence[int]], list[str]]  # the text of each token id


def episode_html(
    trajectory: Trajectory,
    *,
    label: str,
    task: Task | None = None,
    relative: float | None = None,
    pieces: Pieces | None = None,
) -> str:
    """Return one episode below `label`, next to the gold calls of its task if that is given. `relative` is
    its reward minus the mean of its group; with `pieces`, the model's words carry their logprobs."""
    gold = [] if task is None else gold_calls(task, trajectory)
    shown = _side(label, trajectory, relative=relative, pieces=pieces)
    return render("episode.html", shown=shown, gold=gold)


def pair_view(pair: TaskPair) -> JsonObject:
    """Return one task with its attempts before and after training, for the template."""
    sides = [_side("Before training", pair.before), _side("After training", pair.after)]
    return {"question": question(pair.after), "sides": sides}


def token_pieces(run_dir: Path) -> Pieces | None:
    """Return a function from token ids to their texts, by the tokenizer of the run; None without one."""
    path = next(iter(sorted(run_dir.glob("checkpoints/*/tokenizer.json"))), None)
    if path is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(path))
    return lambda token_ids: [tokenizer.decode([each], skip_special_tokens=False) for each in token_ids]


def _side(
    label: str, trajectory: Trajectory, *, relative: float | None = None, pieces: Pieces | None = None
) -> JsonObject:
    said = (str(m.get("content", "")) for m in trajectory.prompt if m.get("role") == "system")
    return {
        "label": label,
        "trajectory": trajectory,
        "outcome": OUTCOMES[trajectory.is_success],
        "relative": relative,
        "system_prompt": next(said, None),
        "turns": [_turn(turn, pieces) for turn in trajectory.turns],
    }


def _turn(turn: Turn, pieces: Pieces | None) -> JsonObject:
    results = {r.call_id: r for r in turn.tool_results}
    likelihood = ""
    if nats := turn.completion.logprobs:
        mean, least = number(sum(nats) / len(nats), digits=2), number(min(nats), digits=2)
        likelihood = f" · {len(nats)} tokens, logprob {mean}, least {least}"
    return {
        "index": turn.index,
        "text": turn.completion.text,
        "likelihood": likelihood,
        "tokens": _shaded(turn, pieces),
        "calls": [(_call_text(call), results.get(call.id)) for call in turn.tool_calls],
        "failures": turn.parse_failures,
        "user_message": turn.user_message,
    }


def _shaded(turn: Turn, pieces: Pieces | None) -> JsonObject | None:
    """Return the tokens of a completion with their lengths and logprobs, which the page's script turns into
    shades; None if they are not known or too many."""
    done = turn.completion
    if pieces is None or not 0 < len(done.logprobs) == len(done.token_ids) <= _SHOWN_TOKENS:
        return None
    texts = [printable(text) for text in pieces(done.token_ids)]
    lengths = [len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in texts]  # as JavaScript counts
    tenths = [round(-10 * nats) for nats in done.logprobs]
    return {
        "text": "".join(texts),
        "lengths": ",".join(map(str, lengths)),
        "nats": ",".join(map(str, tenths)),
    }


def _call_text(call: ToolCall) -> str:
    arguments = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in call.arguments.items())
    return f"{called(call)}({arguments})"
