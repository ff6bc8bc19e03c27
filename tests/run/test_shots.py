"""Demonstrations before the question: which, what a model is sent, and that nothing else takes notice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mcpagent.console import Console
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason
from mcpagent.errors import UserError
from mcpagent.rollout.shots import prompt_ids_with_shots
from mcpagent.run.episodes import open_episodes
from mcpagent.run.evaluate import compare_files, evaluate_model
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.trajectories import read_trajectories
from tests.llm.service import API_KEY, Received, says, service
from tests.run.world import SAMPLES, SHORT, TRAIN, config, dataset, with_id

HELDOUT = SAMPLES / "heldout.jsonl"


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # no .env
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)


def sent(received: list[Received]) -> list[list[dict[str, Any]]]:
    return [request.body["messages"] for request in received]


@pytest.mark.usefixtures("_key")
def test_an_api_is_sent_whole_demonstrations_that_are_the_same_for_every_task(tmp_path: Path) -> None:
    asked = list(read_tasks(HELDOUT))[:3]
    with service(lambda received: says(received, "I cannot tell.")) as running:
        settings = config(f"api.base_url={running.url}", "data.max_tasks=3", "seed=5")
        out = tmp_path / "shots.json"
        outcome = evaluate_model(settings, model="openai:m", data=HELDOUT, shots=2, out=out)
    first, *others = sorted(sent(running.received), key=lambda messages: messages[-1]["content"])
    questions = {messages[-1]["content"] for messages in (first, *others)}
    assert questions == {task.prompt[-1].content for task in asked}
    shown = first[1:-1]
    assert all(messages[1:-1] == shown for messages in others)

    shots = outcome.result.provenance["shots"]
    training = {task.id: task for task in read_tasks(TRAIN)}
    assert shots["count"] == len(set(shots["tasks"])) == 2
    said = [message["content"] for message in shown if message["role"] == "user"]
    assert said == [training[name].prompt[-1].content for name in shots["tasks"]]
    calls = [call for message in shown for call in message.get("tool_calls", ())]
    plans = [step for name in shots["tasks"] for step in training[name].truth.tool_sequence]
    assert [call["function"]["name"] for call in calls] == [step.tool for step in plans]
    assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
    answered = [message["tool_call_id"] for message in shown if message["role"] == "tool"]
    assert answered == [call["id"] for call in calls] and len(set(answered)) == len(answered)
    assert "error" not in " ".join(m["content"] for m in shown if m["role"] == "tool")  # real results

    # What the model wrote is all that its episodes are graded by.
    for trajectory in read_trajectories(out.with_suffix(".jsonl.zst")):
        assert trajectory.call_count == 0 and [m["role"] for m in trajectory.prompt] == ["system", "user"]
        assert trajectory.stop_reason is StopReason.ANSWERED and trajectory.term("coverage") == 0.0


@pytest.mark.usefixtures("_key")
def test_an_answer_that_only_a_shot_has_seen_is_not_earned(tmp_path: Path) -> None:
    """The question is the one that was shown: its values stand in the context, and no call of its episode."""
    shutil.copy(TRAIN, tmp_path / "train.jsonl")
    dataset(tmp_path / "again.jsonl", [with_id(task, f"again-{task.id}") for task in read_tasks(TRAIN)])

    def script(received: Received) -> Any:
        *_, last = (m["content"] for m in received.body["messages"] if m["role"] == "assistant")
        return says(received, last)

    with service(script) as running:
        outcome = evaluate_model(
            config(f"api.base_url={running.url}"),
            model="openai:m",
            data=tmp_path / "again.jsonl",
            shots=1,
            out=tmp_path / "out.json",
        )
    [shown] = outcome.result.provenance["shots"]["tasks"]
    episodes = {t.task_id: t for t in read_trajectories(tmp_path / "out.jsonl.zst")}
    again = episodes[f"again-{shown}"]
    assert (again.term("answer"), again.is_success) == (1.0, False)


def chosen(seed: int, count: int, *, data: Path = HELDOUT) -> list[str]:
    settings = config(f"seed={seed}", "api.base_url=http://127.0.0.1:9", "data.max_tasks=1")
    quiet = Console(is_json=True)
    with open_episodes(
        settings, policy="openai:m", samples=1, console=quiet, data=data, shots=count
    ) as setup:
        return setup.provenance(samples=1)["shots"]["tasks"]


@pytest.mark.usefixtures("_key")
def test_shots_are_of_different_tools_and_follow_from_the_seed() -> None:
    training = {task.id: task for task in read_tasks(TRAIN)}
    tools = {name: tuple(step.tool for step in task.truth.tool_sequence) for name, task in training.items()}
    different = {each for each in tools.values() if each}
    assert len(different) == 8 < len(training)
    for seed in (1, 2):
        assert {tools[name] for name in chosen(seed, 8)} == different
    assert chosen(1, 3) == chosen(1, 3) != chosen(2, 3)


@pytest.mark.usefixtures("_key")
def test_tasks_that_ask_for_an_answer_come_before_those_that_show_none(tmp_path: Path) -> None:
    *others, last = (task for task in read_tasks(TRAIN) if task.truth.tool_sequence)
    silent = [task.model_copy(update={"reward_spec": _without_answer(task)}) for task in others]
    dataset(tmp_path / "train.jsonl", [*silent, last])
    data = Path(shutil.copy(HELDOUT, tmp_path / "heldout.jsonl"))
    assert [chosen(seed, 2, data=data)[0] for seed in range(3)] == [last.id] * 3


@pytest.mark.usefixtures("_key")
def test_no_task_that_is_evaluated_or_held_out_is_a_shot(tmp_path: Path) -> None:
    tasks = [task for task in read_tasks(TRAIN) if task.truth.tool_sequence]
    held = [t.model_copy(update={"extra_info": {**t.extra_info, "split": "heldout"}}) for t in tasks[1:-2]]
    dataset(tmp_path / "train.jsonl", [tasks[0], *held, *tasks[-2:]])
    data = dataset(tmp_path / "others.jsonl", tasks[:1])
    assert {*chosen(1, 2, data=data)} == {task.id for task in tasks[-2:]}


def _without_answer(task: Task) -> Any:
    truth = task.truth.model_copy(update={"final_answer": None})
    return task.reward_spec.model_copy(update={"ground_truth": truth})


def test_the_tokens_are_those_of_the_whole_conversation_and_begin_alike(tiny_checkpoint: Path) -> None:
    settings = config(SHORT, "rollout.temperature=0", "data.max_tasks=4", "rollout.max_context_tokens=16384")
    with open_episodes(
        settings,
        policy=str(tiny_checkpoint),
        samples=1,
        console=Console(is_json=True),
        data=HELDOUT,
        shots=2,
    ) as setup:
        renderer, shots = setup.ready.renderer, setup.settings.shots
        assert renderer is not None
        conversation: list[dict[str, Any]] = []
        for shot in (shot.played for shot in shots):
            conversation.append({"role": "user", "content": shot.prompt[-1]["content"]})
            for turn in shot.turns:
                conversation.append({"role": "assistant", "content": turn.completion.text})
                conversation += [{"role": "tool", "content": r.content} for r in turn.tool_results]
        for task in setup.tasks:
            system, question = (message.model_dump() for message in task.prompt)
            whole = renderer.full_ids([system, *conversation, question], [])
            assert prompt_ids_with_shots([system, question], [], shots, renderer) == whole
        played = setup.play(samples=1, on_done=lambda _: None)
    prompts = [trajectory.turns[0].added_token_ids for trajectory in played if trajectory.turns]
    assert prompts and all(trajectory.final_answer is None for trajectory in played)
    answer = shots[0].played.turns[-1].completion.text
    assert all(answer in renderer.decode(prompt) for prompt in prompts)


def test_shots_that_leave_no_room_are_refused_before_anything_is_played(tiny_checkpoint: Path) -> None:
    settings = config(SHORT, "rollout.max_context_tokens=400")
    with pytest.raises(UserError, match=r"tokens with them, and the context has 400") as refused:
        evaluate_model(settings, model=str(tiny_checkpoint), data=HELDOUT, shots=2)
    assert refused.value.where == "--shots 2"


def test_shots_need_a_training_split_that_is_not_evaluated(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    alone = Path(shutil.copy(HELDOUT, tmp_path / "heldout.jsonl"))
    with pytest.raises(UserError, match=r"no train.jsonl next to .*heldout.jsonl") as refused:
        evaluate_model(config(), model="openai:m", data=alone, shots=2)
    assert "--set data.train=FILE" in str(refused.value.remedy)
    with pytest.raises(UserError, match="of the tasks that are evaluated"):
        evaluate_model(config(), model="openai:m", data=TRAIN, shots=2)
    with pytest.raises(UserError, match=r"only .* of 500 shots could be played"):
        evaluate_model(config(f"data.train={TRAIN}"), model="openai:m", data=alone, shots=500)
    with pytest.raises(UserError, match="the policy gold reads no shots"):
        evaluate_model(config(), model="gold", data=HELDOUT, shots=2)


@pytest.mark.usefixtures("_key")
def test_a_comparison_says_that_one_side_had_shots_and_resuming_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service(lambda received: says(received, "no")) as running:
        settings = config(f"api.base_url={running.url}", "data.max_tasks=2")
        files = [tmp_path / "none.json", tmp_path / "two.json"]
        for out, shots in zip(files, (0, 2), strict=True):
            evaluate_model(settings, model="openai:m", data=HELDOUT, shots=shots, out=out)
        asked = len(running.received)
        evaluate_model(settings, model="openai:m", data=HELDOUT, shots=2, out=files[1], resume=True)
        assert len(running.received) == asked
        with pytest.raises(UserError, match="different settings: the shots"):
            evaluate_model(settings, model="openai:m", data=HELDOUT, shots=1, out=files[1], resume=True)
    capsys.readouterr()
    compare_files(*files, console=Console())
    assert "differ in the shots too" in " ".join(capsys.readouterr().err.split())
