"""A model that plays the user: what it may say, what is said in its place, and that it says it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.core.tools import ToolResult
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.user import UserTurn, fault_of, secrets_of
from mcpagent.run.rollout import collect_rollouts
from mcpagent.storage.trajectories import read_trajectories
from tests.env.world import make_task
from tests.llm.service import API_KEY, Answer, Received, says, service
from tests.run.world import dataset, with_id

GOAL = "I mean the quote of QTPH, for Marta."
QUOTE = ToolResult(
    call_id="c0",
    server="fmp",
    tool="get_quote",
    content=json.dumps({"price": 345.25, "name": "quantum phase"}),
)
TURN = UserTurn(
    goal=GOAL,
    said=["How is it doing today?"],
    heard="Which one do you mean? I saw 345.25.",
    results=[QUOTE],
    tool_names=["get_quote"],
    secrets=["rather bullish"],
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOAL, None),
        ("Oh, sorry: it is for Marta, and I want to know the quote of QTPH.", None),
        ("The quote of QTPH, please.", "leaves out marta"),
        ("For Marta: the quote of QTPH. Is it 345.25?", "345.25"),
        ("For Marta: the quote of QTPH, and of ABCD.", "abcd"),
        ("For Marta: the quote of QTPH. Ask Olsen for it.", "olsen"),
        ("The quote of QTPH for Marta, that is quantum phase, is it?", "for a tool"),
        ("The quote of QTPH for Marta, it is rather bullish.", "for a tool"),
        ("For Marta: get_quote of QTPH", "get_quote"),
        ('<tool_call>{"name": "x"}</tool_call> QTPH Marta', "markup"),
        ("", "empty"),
        ("QTPH for Marta. " + "really " * 100, "longer"),
    ],
)
def test_an_honest_user_says_what_it_wants_and_nothing_that_it_cannot_know(
    text: str, fault: str | None
) -> None:
    found = fault_of(text, TURN)
    assert found is None if fault is None else found is not None and fault in found


def test_the_answer_of_a_task_is_not_the_users_to_tell() -> None:
    task = make_task(final_answer={"type": "must_include", "value": ["rather bullish", "${step1.price}"]})
    turn = UserTurn(goal=GOAL, said=(), heard="", secrets=secrets_of(task))
    assert turn.secrets == ["rather bullish"]
    assert fault_of("The quote of QTPH for Marta, rather bullish", turn) is not None


def a_dataset(path: Path) -> Path:
    task = make_task(
        abstain=True,
        user_turns=[GOAL, "Thanks, that is all."],
        final_answer={"type": "abstention", "value": "replies"},
        reference_answer="You are welcome.",
    )
    return dataset(path / "tasks.jsonl", [with_id(task, f"t{n}") for n in range(2)])


def played(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, **settings: str) -> list[Trajectory]:
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    overrides = [
        "rollout.user_model=pretender",
        f"output_dir={tmp_path / 'outputs'}",
        f"api.base_url={url}",
        "api.attempts=1",
        *(f"{key}={value}" for key, value in settings.items()),
    ]
    config = load_train_config([], overrides, for_training=False).config
    outcome = collect_rollouts(config, policy="gold", out=tmp_path / "out", data=a_dataset(tmp_path))
    return list(read_trajectories(outcome.path))


def goal_of(received: Received) -> str:
    return GOAL if GOAL in received.messages[0]["content"] else "Thanks, that is all."


def test_a_model_says_the_users_messages_and_says_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(received: Received) -> Answer:
        assert "345" not in json.dumps(received.messages)
        if goal_of(received) != GOAL:
            return says(received, "That is all, thanks!")
        seed = received.body["seed"]
        return says(received, f"Marta's, I mean: the quote of QTPH{'!' * (seed % 3)}")

    with service(script) as running:
        first = played(tmp_path, running.url, monkeypatch)
        asked = len(running.received)
        second = played(tmp_path, running.url, monkeypatch)
        assert asked == len(running.received) == 4
        again = played(tmp_path, running.url, monkeypatch, seed="1")
        assert len(running.received) == 8
    for trajectory in (*first, *again):
        messages = [turn.user_message or "" for turn in trajectory.turns]
        assert messages[0].startswith("Marta's, I mean: the quote of QTPH")
        assert messages[1:] == ["That is all, thanks!", ""]
        assert [t.simulated_user is not None for t in trajectory.turns] == [True, True, False]
        assert trajectory.is_success
    said = [[[turn.user_message for turn in t.turns] for t in run] for run in (first, second)]
    assert said[0] == said[1]


def test_a_model_that_tells_what_it_must_not_is_asked_again_and_then_the_script_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(received: Received) -> Answer:
        if goal_of(received) != GOAL:
            return says(received, "Thanks, that is all, 42.")
        is_first = sum(goal_of(r) == GOAL for r in running.received) % 2 == 1
        return says(received, "QTPH for Marta, it is 345.25" if is_first else "The quote of QTPH, for Marta.")

    with service(script) as running:
        trajectories = played(tmp_path, running.url, monkeypatch, **{"rollout.num_envs": "1"})
    for trajectory in trajectories:
        first, second = trajectory.turns[0].simulated_user, trajectory.turns[1].simulated_user
        assert first is not None and second is not None
        assert trajectory.turns[0].user_message == "The quote of QTPH, for Marta."
        assert (len(first.rejected), first.is_scripted) == (1, False) and "345.25" in first.rejected[0]
        assert trajectory.turns[1].user_message == "Thanks, that is all."
        assert (len(second.rejected), second.is_scripted) == (3, True)
        assert Trajectory.model_validate_json(trajectory.model_dump_json()).turns[0].simulated_user == first


def test_a_user_that_does_not_answer_leaves_the_episode_unscored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(lambda _: Answer(status=400, body={"error": {"message": "no"}})) as running:
        trajectories = played(tmp_path, running.url, monkeypatch)
    assert all(t.reward is None and "simulated user" in t.errors[0] for t in trajectories)
