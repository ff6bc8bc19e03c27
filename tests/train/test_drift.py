"""How far the kept context of an episode is from a rendering of its whole conversation."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import Completion, StopReason, Trajectory, Turn
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.env.parsing import observations
from mcpagent.models.tokens import Renderer, measure_drift
from mcpagent.train.actor import DriftCallback
from mcpagent.train.health import StepReport
from tests.models.templates import STRIPS_THINKING

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "A"}}\n</tool_call>'
PROMPT: tuple[JsonObject, ...] = ({"role": "user", "content": "Where is it?"},)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([CALL, "Where is it?", "nothing there"] * 9, vocab_size=500, catalog_hash="")


def with_template(tokenizer: Any, template: str) -> Renderer:
    own = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, eos_token=tokenizer.eos_token)
    own.chat_template = template
    return Renderer(own)


def episode(renderer: Renderer, *said: str, ids: dict[str, tuple[int, ...]] | None = None) -> Trajectory:
    """Each of `said` is answered; where it is no call, by a broken call's message. `ids` are the tokens that
    were sampled, where they are not those that the tokenizer would make of the text."""
    added = renderer.prompt_ids(PROMPT, ())
    turns: list[Turn] = []
    for index, text in enumerate(said):
        call = ToolCall(id=f"c{index}", server="s", tool="look", arguments={"at": "A"})
        found = "<tool_call>\n{" in text
        turn = Turn(
            index=index,
            added_token_ids=added,
            completion=Completion(text=text, token_ids=(ids or {}).get(text) or renderer.action_ids(text)),
            tool_calls=(call,) if found else (),
            tool_results=(ToolResult(call_id=call.id, server="s", tool="look", content="nothing there"),)
            if found
            else (),
            parse_failures=() if found else (ParseFailure(raw=text, reason="no JSON"),),
        )
        turns.append(turn)
        added = renderer.suffix_ids(observations(turn.tool_results, turn.parse_failures, turn.user_message))
    return Trajectory(
        id="t#0",
        task_id="t",
        group_id="t",
        prompt=PROMPT,
        turns=tuple(turns),
        stop_reason=StopReason.ANSWERED,
    )


def measured(renderer: Renderer, *episodes: Trajectory) -> JsonObject:
    report = StepReport(step=1, metrics={}, trajectories=episodes)
    DriftCallback(renderer).on_step(report)
    return report.metrics


def test_a_template_that_keeps_everything_has_no_drift(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    played = episode(renderer, CALL, CALL, "<tool_call>broken</tool_call>", "It is nowhere.")
    assert measured(renderer, played) == {"drift_tokens": 0, "drift_share": 0.0}


def test_thoughts_that_a_template_drops_are_the_drift(tokenizer: Any) -> None:
    renderer = with_template(tokenizer, STRIPS_THINKING)
    thought = "<think>\nI look.\n</think>\n\n"
    played = episode(renderer, f"{thought}{CALL}", f"{thought}{CALL}", "It is nowhere.")
    kept = sum(len(t.added_token_ids) for t in played.turns) + sum(
        len(t.completion.token_ids) for t in played.turns[:-1]
    )
    lost = 2 * len(tokenizer.encode(thought))
    assert measured(renderer, played) == {"drift_tokens": lost, "drift_share": pytest.approx(lost / kept)}


def test_text_that_was_sampled_in_other_tokens_is_drift(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    whole = tuple(tokenizer.encode("Where"))
    spelled = tuple(i for letter in "Where" for i in tokenizer.encode(letter))
    assert len(whole) < len(spelled) and tokenizer.decode(spelled) == "Where"
    call = f"Where\n{CALL}"
    usual = renderer.action_ids(call)
    assert usual[: len(whole)] == whole
    ids = {call: (*spelled, *usual[len(whole) :])}
    played = episode(renderer, call, "It is nowhere.", ids=ids)
    assert measured(renderer, played)["drift_tokens"] == len(spelled)


def test_the_count_is_that_of_the_longest_common_subsequence(tokenizer: Any) -> None:
    """Against the table that textbooks give, on sequences whose tokens repeat."""
    renderer, rng = Renderer(tokenizer), random.Random(0)
    for _ in range(50):
        message = {"role": "user", "content": "".join(rng.choices("ab ", k=rng.randint(0, 30)))}
        full = renderer.full_ids([message], ())
        kept = rng.choices(full, k=rng.randint(1, 40))
        table = [[0] * (len(full) + 1) for _ in range(len(kept) + 1)]
        for i, ours in enumerate(kept):
            for j, theirs in enumerate(full):
                longer = max(table[i][j + 1], table[i + 1][j])
                table[i + 1][j + 1] = table[i][j] + 1 if ours == theirs else longer
        drift = measure_drift(renderer, kept, [message], ())
        assert drift.changed == max(len(kept), len(full)) - table[-1][-1]


def test_where_nothing_can_be_told_there_is_no_number(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    without_history = episode(renderer, "It is nowhere.")
    failed = episode(renderer, CALL, "It").model_copy(update={"stop_reason": StopReason.FAILED})
    assert measured(renderer, without_history, failed) == {}
