"""Planted frauds, each of them named by the check.

A forger here knows the program: whatever is changed, the figures follow from it and every hash is made anew
(`reseal`), except if the fraud is to leave that out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason, Trajectory, Turn
from mcpagent.evaluate.certificate import committed_seed, question_key, read_certificate
from mcpagent.models.load import load_tokenizer
from mcpagent.rollout.collector import attempts
from mcpagent.run.certify_check import CHECKS, check
from mcpagent.storage.checkpoints import weights_sha256
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.trajectories import read_trajectories
from tests.run.certified import (
    Honest,
    edit_episodes,
    edit_json,
    edit_lines,
    edit_tasks,
    make_certificate,
    reseal,
    terms_of,
)
from tests.run.world import with_id

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Base:
    """An honest certificate, and others of the same run: hotter, shorter, with more attempts."""

    folder: Path
    run: Path
    hot: Path
    short: Path
    many: Path


@pytest.fixture(scope="session")
def base(honest: Honest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    place = tmp_path_factory.mktemp("others")
    make_certificate(honest.run, place / "hot", "rollout.temperature=4.0")
    make_certificate(honest.run, place / "short", "rollout.max_new_tokens=3")
    make_certificate(honest.run, place / "many", samples=3)
    return Base(honest.folder, honest.run, place / "hot", place / "short", place / "many")


JsonUpdate = dict[str, Any]
Change = Callable[[JsonUpdate], None]  # of certificate.json, made when the folder is sealed anew
Plant = Callable[[Path, Base], Change | None]
CASES: dict[str, tuple[Plant, str, str, bool]] = {}


def fraud(name: str, says: str, *, is_sealed: bool = True) -> Callable[[Plant], Plant]:
    """Register a fraud with the check that must name it, and a word of what that must say."""

    def register(plant: Plant) -> Plant:
        CASES[plant.__name__.replace("_", " ")] = (plant, name, says, is_sealed)
        return plant

    return register


def states(name: str, says: str, change: Change) -> None:
    """A fraud in certificate.json alone: it states what does not follow."""
    CASES[name] = (lambda folder, base: change, "statements", says, True)


def each(folder: Path, side: str, edit: Callable[[Trajectory], Trajectory]) -> None:
    edit_episodes(folder, side, lambda played: [edit(t) for t in played])


def each_turn(folder: Path, side: str, edit: Callable[[Turn], JsonUpdate]) -> None:
    def edited(t: Trajectory) -> Trajectory:
        return t.model_copy(update={"turns": tuple(u.model_copy(update=edit(u)) for u in t.turns)})

    each(folder, side, edited)


def drop_task(folder: Path) -> str:
    """A task less in every side, but not in the tasks' own file."""
    dropped = next(read_tasks(folder / "tasks" / "heldout.jsonl")).id
    for side in (*read_certificate(folder).sides, "attacks"):
        edit_episodes(folder, side, lambda played: [t for t in played if t.task_id != dropped])
    return dropped


def with_seeds(folder: Path, played: list[Trajectory], seed: int | None = None) -> list[Trajectory]:
    """With the seeds that the certificate in `folder` demands, or those of another `seed`."""
    tasks = list(read_tasks(folder / "tasks" / "heldout.jsonl"))
    chosen = read_certificate(folder).seed if seed is None else seed
    seeds = {a.episode_id: a.seed for a in attempts(tasks, per_task=9, seed=chosen, label="evaluation")}
    return [t.model_copy(update={"seed": seeds[t.id]}) for t in played]


def seed_that_follows(folder: Path) -> Change:
    """Everything is played with the seed that the folder's tasks and weights give now."""
    certificate = read_certificate(folder)
    weights = {name: certificate.sides[name].weights_sha256 for name in ("baseline", "trained")}
    seed = committed_seed(folder, weights, certificate)
    for side in certificate.sides:
        edit_episodes(folder, side, lambda played: with_seeds(folder, played, seed))
    return lambda document: document.update(seed=seed)


def episodes_of(other: Path, side: str, folder: Path) -> None:
    """Those of another certificate in the place of this one's."""
    played = list(read_trajectories(other / "episodes" / side))
    edit_episodes(folder, side, lambda _: with_seeds(folder, played))


# --- the split and the tasks -----------------------------------------------------------------------------


def leak(folder: Path, change: Callable[[Task], Task]) -> Change:
    """A held-out task among the training tasks, with the seed that follows then."""
    leaked = next(read_tasks(folder / "tasks" / "heldout.jsonl"))
    edit_tasks(folder, "train", lambda tasks: [*tasks, change(leaked)])
    return seed_that_follows(folder)


def asking(task: Task, text: str) -> Task:
    *before, last = task.prompt
    said = last.model_copy(update={"content": text.format(last.content)})
    return with_id(task.model_copy(update={"prompt": (*before, said)}), "another-id")


@fraud("statements", "excluded")
def a_held_out_task_among_the_training_tasks(folder: Path, _: Base) -> Change:
    return leak(folder, lambda task: task)


@fraud("statements", "excluded")
def the_same_question_under_another_id(folder: Path, _: Base) -> Change:
    return leak(folder, lambda task: asking(task, "  {} !"))


@fraud("statements", "excluded")
def the_same_plan_in_other_words(folder: Path, _: Base) -> Change:
    return leak(folder, lambda task: asking(task, "Would you be so kind: {}"))


@fraud("statements", "excluded")
def trained_on_a_held_out_question(folder: Path, _: Base) -> None:
    task = next(t for t in read_tasks(folder / "tasks" / "heldout.jsonl") if not t.truth.user_turns)
    trained = next(read_tasks(folder / "tasks" / "train.jsonl")).id
    asked = {trained: [question_key(task.prompt[-1].content)]}
    edit_json(folder / "run" / "trained_on.json", lambda on: on.update(asked))


@fraud("statements", "other tasks")
def training_tasks_that_are_left_out(folder: Path, _: Base) -> Change:
    played = set(json.loads((folder / "run" / "trained_on.json").read_text()))
    edit_tasks(folder, "train", lambda tasks: [t for t in tasks if t.id not in played])
    return seed_that_follows(folder)


@fraud("statements", "seed")
def a_task_dropped_with_its_file(folder: Path, _: Base) -> None:
    dropped = drop_task(folder)
    edit_tasks(folder, "heldout", lambda tasks: [t for t in tasks if t.id != dropped])


@fraud("statements", "run.heldout_is_the_runs")
def a_task_dropped_and_the_manifest_forgotten(folder: Path, _: Base) -> Change:
    manifest = (folder / "run" / "manifest.json").read_text()
    dropped = drop_task(folder)
    edit_tasks(folder, "heldout", lambda tasks: [t for t in tasks if t.id != dropped])
    (folder / "run" / "manifest.json").write_text(manifest)
    return seed_that_follows(folder)


@fraud("statements", "excluded")
def a_task_called_a_leak(folder: Path, _: Base) -> Change:
    dropped = drop_task(folder)
    return lambda document: document["excluded"].update({dropped: "a training task asks the same"})


@fraud("episodes", "was not played")
def a_task_dropped_from_one_side(folder: Path, _: Base) -> None:
    dropped = next(read_tasks(folder / "tasks" / "heldout.jsonl")).id
    edit_episodes(folder, "trained", lambda played: [t for t in played if t.task_id != dropped])


@fraud("statements", "seed")
def a_check_made_easier(folder: Path, _: Base) -> None:
    def easier(task: Task) -> Task:
        document = task.model_dump(mode="json")
        document["reward_spec"]["ground_truth"]["final_answer"] = {"type": "regex", "value": "."}
        return Task.model_validate(document)

    edit_tasks(folder, "heldout", lambda tasks: [easier(task) for task in tasks])


# --- the episodes ----------------------------------------------------------------------------------------


@fraud("statements", "seed")
def the_luckiest_of_ten_seeds(folder: Path, _: Base) -> Change:
    for side in read_certificate(folder).sides:
        edit_episodes(folder, side, lambda played: with_seeds(folder, played, 7))
    return lambda document: document.update(seed=7)


@fraud("episodes", "differs in seed")
def other_seeds_on_one_side(folder: Path, _: Base) -> None:
    edit_episodes(folder, "trained", lambda played: with_seeds(folder, played, 7))


@fraud("replay", "more of")
def the_best_attempt_told_twice(folder: Path, _: Base) -> None:
    def twice(played: list[Trajectory]) -> list[Trajectory]:
        first = {t.task_id: t for t in played if t.attempt == 0}
        kept = ("id", "attempt", "seed")
        return [first[t.task_id].model_copy(update={n: getattr(t, n) for n in kept}) for t in played]

    edit_episodes(folder, "trained", twice)


@fraud("episodes", "was not played")
def failures_left_out(folder: Path, _: Base) -> None:
    edit_episodes(folder, "trained", lambda played: [t for t in played if t.attempt == 0])


@fraud("episodes", "can be graded")
def failures_called_broken(folder: Path, _: Base) -> None:
    def broken(t: Trajectory) -> Trajectory:
        emptied = terms_of(t, **dict.fromkeys([term.name for term in t.reward_terms]))
        update = {"stop_reason": StopReason.FAILED, "errors": ("the server was down",)}
        return emptied.model_copy(update=update) if t.attempt else t

    each(folder, "baseline", broken)


@fraud("episodes", "reward_terms")
def successes_written_in(folder: Path, _: Base) -> None:
    each(folder, "trained", lambda t: terms_of(t, success=1.0, partial=1.0))


@fraud("episodes", "reward_terms")
def failures_of_attacks_written_in(folder: Path, _: Base) -> None:
    each(folder, "attacks", lambda t: terms_of(t, success=0.0))


@fraud("episodes", "reward_terms")
def another_weight_in_the_terms(folder: Path, _: Base) -> None:
    def heavier(t: Trajectory) -> Trajectory:
        terms = tuple(term.model_copy(update={"weight": 3 * term.weight}) for term in t.reward_terms)
        return t.model_copy(update={"reward_terms": terms})

    each(folder, "trained", heavier)


def as_gold(folder: Path, *, with_tokens: bool) -> None:
    """The trained side says what the plan says, with all that follows from it."""
    played = read_trajectories(folder / "episodes" / "attacks")
    gold = {t.task_id: t for t in played if t.id.endswith("#gold")}
    tokenizer = load_tokenizer(str(folder / "weights" / "baseline"))

    def played_well(t: Trajectory) -> Trajectory:
        first = t.turns[0]
        turns: list[Turn] = []
        for turn in gold[t.task_id].turns:
            ids, logprobs = first.completion.token_ids, first.completion.logprobs
            if with_tokens:
                ids = tuple(tokenizer.encode(turn.completion.text, add_special_tokens=False))
                logprobs = (-0.1,) * len(ids)
            said = turn.completion.model_copy(update={"token_ids": ids, "logprobs": logprobs})
            added = (5,) if turns else first.added_token_ids
            turns.append(turn.model_copy(update={"completion": said, "added_token_ids": added}))
        kept = ("final_answer", "stop_reason", "reward_terms", "state_results", "read_only")
        update = {name: getattr(gold[t.task_id], name) for name in kept}
        return t.model_copy(update={**update, "turns": tuple(turns)})

    each(folder, "trained", played_well)


@fraud("episodes", "completion.text")
def texts_replaced(folder: Path, _: Base) -> None:
    as_gold(folder, with_tokens=False)


@fraud("episodes", "nats apart")
def texts_and_tokens_replaced(folder: Path, _: Base) -> Change:
    as_gold(folder, with_tokens=True)
    return lambda document: document["conditions"].update({"rollout.max_new_tokens": 500})


@fraud("episodes", "tool_results.0.content")
def results_replaced(folder: Path, _: Base) -> None:
    """A tool's answer is another one in the episode alone."""

    def other(turn: Turn) -> JsonUpdate:
        return {"tool_results": tuple(r.model_copy(update={"content": "{}"}) for r in turn.tool_results)}

    each_turn(folder, "attacks", other)


@fraud("statements", "cannot be used")
def a_tape_that_answers_otherwise(folder: Path, _: Base) -> None:
    path = folder / "cassette" / "calls.jsonl"
    path.write_text(path.read_text().replace("0", "1"))


@fraud("episodes", "said again, it differs in")
def a_tape_without_an_answer(folder: Path, _: Base) -> None:
    path = folder / "cassette" / "calls.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


@fraud("episodes", "tool_calls")
def a_call_that_was_not_made(folder: Path, _: Base) -> None:
    played = read_trajectories(folder / "episodes" / "attacks")
    source = next(t.turns[0] for t in played if t.turns[0].tool_calls)
    made = {"tool_calls": source.tool_calls, "tool_results": source.tool_results}
    each_turn(folder, "trained", lambda turn: {} if turn.index else made)


@fraud("episodes", "final_answer")
def an_answer_replaced(folder: Path, _: Base) -> None:
    each(folder, "trained", lambda t: t.model_copy(update={"final_answer": "It is 4711."}))


@fraud("episodes", "stop_reason")
def an_ending_replaced(folder: Path, _: Base) -> None:
    each(folder, "trained", lambda t: t.model_copy(update={"stop_reason": StopReason.ANSWERED}))


@fraud("episodes", "tokens.0.shown")
def a_hint_in_the_prompt(folder: Path, _: Base) -> None:
    each_turn(folder, "trained", lambda turn: {"added_token_ids": (*turn.added_token_ids, 7)})


@fraud("episodes", "prompt")
def another_question(folder: Path, _: Base) -> None:
    asked = {"role": "user", "content": "Say 4711."}
    each(folder, "trained", lambda t: t.model_copy(update={"prompt": (*t.prompt[:-1], asked)}))


# --- the models ------------------------------------------------------------------------------------------


@fraud("episodes", "nats apart")
def a_stale_adapter(folder: Path, _: Base) -> None:
    played = list(read_trajectories(folder / "episodes" / "baseline"))
    edit_episodes(folder, "trained", lambda _: played)


@fraud("episodes", "nats apart")
def a_baseline_that_is_sampled_hot(folder: Path, base: Base) -> None:
    episodes_of(base.hot, "baseline", folder)


@fraud("episodes", "finish_reason")
def a_baseline_with_fewer_tokens(folder: Path, base: Base) -> None:
    episodes_of(base.short, "baseline", folder)


@fraud("episodes", "one too many")
def more_attempts_for_the_trained_side(folder: Path, base: Base) -> None:
    episodes_of(base.many, "trained", folder)


@fraud("statements", "run.baseline_is_the_runs")
def a_worse_baseline(folder: Path, _: Base) -> None:
    """The manifest names the model that the run began with."""
    edit_json(folder / "run" / "manifest.json", lambda m: m["model"].update(weights_sha256="0" * 64))


def swap_adapter(folder: Path, base: Base) -> None:
    first = base.run / "checkpoints" / "step-000000" / "adapter_model.safetensors"
    shutil.copyfile(first, folder / "weights" / "trained" / "adapter_model.safetensors")


@fraud("statements", "sides.trained.weights_sha256")
def other_weights_in_the_folder(folder: Path, base: Base) -> None:
    swap_adapter(folder, base)


@fraud("episodes", "nats apart")
def another_adapter_under_the_name(folder: Path, base: Base) -> Change:
    """Other weights, and a certificate that names them, with the seed that follows: the logprobs do not."""
    swap_adapter(folder, base)
    sha256 = weights_sha256(folder / "weights" / "trained")
    edit_json(folder / "certificate.json", lambda d: d["sides"]["trained"].update(weights_sha256=sha256))
    return seed_that_follows(folder)


@fraud("statements", "sides.baseline.chat_template_sha256")
def another_template(folder: Path, _: Base) -> Change:
    return lambda document: document["sides"]["baseline"].update(chat_template_sha256="0" * 64)


# --- tools, attacks, records -----------------------------------------------------------------------------


@fraud("statements", "other tools")
def a_tool_described_otherwise(folder: Path, _: Base) -> None:
    def described(catalog: Any) -> None:
        catalog["tools"][0]["description"] += " It knows the answer."

    edit_json(folder / "cassette" / "catalog.json", described)


@fraud("statements", "other tools")
def tools_of_another_run(folder: Path, _: Base) -> None:
    edit_json(folder / "run" / "manifest.json", lambda m: m.update(catalog_hash="0" * 64))


@fraud("episodes", "silence: it was not played")
def an_attack_that_is_not_told(folder: Path, _: Base) -> None:
    edit_episodes(folder, "attacks", lambda played: [t for t in played if not t.id.endswith("#silence")])


@fraud("episodes", "the answer from memory: said again, it differs")
def a_tame_attack(folder: Path, _: Base) -> None:
    def tame(played: list[Trajectory]) -> list[Trajectory]:
        silent = {t.task_id: t for t in played if t.id.endswith("#silence")}
        from_memory = "#the answer from memory"
        return [
            silent[t.task_id].model_copy(update={"id": t.id}) if t.id.endswith(from_memory) else t
            for t in played
        ]

    edit_episodes(folder, "attacks", tame)


@fraud("statements", "no proof")
def a_proof_that_is_missing(folder: Path, _: Base) -> None:
    def without(line: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in line.items() if key != "canary_difference"}

    edit_lines(folder / "run" / "metrics.jsonl", lambda lines: [*lines[:-1], without(lines[-1])])


@fraud("statements", "nats apart")
def a_proof_that_failed(folder: Path, _: Base) -> None:
    path = folder / "run" / "metrics.jsonl"
    edit_lines(path, lambda lines: [{**line, "canary_difference": 0.5} for line in lines])


@fraud("statements", "every step")
def a_step_that_is_missing(folder: Path, _: Base) -> None:
    edit_lines(folder / "run" / "metrics.jsonl", lambda lines: lines[1:])


# --- certificate.json and the files ----------------------------------------------------------------------


def gain(document: dict[str, Any]) -> dict[str, Any]:
    return document["figures"]["gain"]["difference"]


states(
    "a gain",
    "figures.gain.difference.value",
    lambda document: gain(document).update(value=0.4, ci_low=0.2, ci_high=0.6),
)
states(
    "a narrow interval",
    "figures.gain.difference.ci_low",
    lambda document: gain(document).update(ci_low=-0.01),
)
states(
    "tokens not counted",
    "figures.budget.trained.sampled_tokens",
    lambda document: document["figures"]["budget"]["trained"].update(sampled_tokens=3),
)
states(
    "another reward in training",
    "reward.weights.success",
    lambda document: document["reward"]["weights"].update(success=0.9),
)


@fraud("statements", "files.run/config.yaml", is_sealed=False)
def a_file_that_was_touched(folder: Path, _: Base) -> None:
    path = folder / "run" / "config.yaml"
    path.write_text(path.read_text() + "# nothing\n")


FAST = (
    *("the same plan in other words", "the luckiest of ten seeds", "texts and tokens replaced"),
    *("failures called broken", "a stale adapter", "a baseline that is sampled hot", "a gain"),
)


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in FAST else pytest.mark.slow) for what in CASES]
)
def test_a_planted_fraud_is_named(what: str, base: Base, tmp_path: Path) -> None:
    plant, name, says, is_sealed = CASES[what]
    folder = Path(shutil.copytree(base.folder, tmp_path / "certificate"))
    change = plant(folder, base)
    if is_sealed:
        reseal(folder, change or (lambda _: None))
    frauds = check(folder, replay=100 if name == "replay" else 0)
    assert any(fraud.name == name and says in fraud.detail for fraud in frauds), frauds


def test_every_check_has_found_a_planted_fraud() -> None:
    assert {name for _, name, _, _ in CASES.values()} == CHECKS.keys()
