"""Planted frauds, each of them named by the check.

A forger here knows the program: whatever is changed, the figures follow from it, the page says the same, and
every hash is made anew (`reseal`), but where the fraud is to leave that out.
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
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.evaluate.certificate import committed_seed, question_key, read_certificate
from mcpagent.evaluate.certificate_check import FRAUDS
from mcpagent.models.load import load_tokenizer
from mcpagent.rollout.collector import attempts
from mcpagent.run.certify_check import check
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.trajectories import read_trajectories
from tests.run.certified import (
    edit_episodes,
    edit_json,
    edit_lines,
    edit_tasks,
    make_certificate,
    make_run,
    reseal,
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
def base(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Base:
    place = tmp_path_factory.mktemp("certified")
    run = make_run(tiny_checkpoint, place)
    control = make_run(tiny_checkpoint, place / "control", "training.max_steps=1")
    controls = {"random rewards": control}
    make_certificate(run, place / "honest", controls=controls)
    make_certificate(run, place / "hot", "rollout.temperature=4.0")
    make_certificate(run, place / "short", "rollout.max_new_tokens=3")
    make_certificate(run, place / "many", samples=3)
    return Base(place / "honest", run, place / "hot", place / "short", place / "many")


def seeds_as_expected(folder: Path, played: list[Trajectory], seed: int | None = None) -> list[Trajectory]:
    """With the seeds that the certificate in `folder` demands, or those of another `seed`."""
    certificate = read_certificate(folder)
    tasks = list(read_tasks(folder / "tasks" / "heldout.jsonl"))
    chosen = certificate.conditions.seed if seed is None else seed
    seeds = {a.episode_id: a.seed for a in attempts(tasks, per_task=9, seed=chosen, label="evaluation")}
    return [t.model_copy(update={"seed": seeds[t.id]}) for t in played]


def episodes_of(other: Path, side: str, folder: Path) -> None:
    """Those of another certificate in the place of this one's."""
    played = list(read_trajectories(other / "episodes" / side))
    edit_episodes(folder, side, lambda _: seeds_as_expected(folder, played))


def all_of(side: str, **update: Any) -> Callable[[Path, Base], None]:
    def plant(folder: Path, _: Base) -> None:
        edit_episodes(folder, side, lambda played: [t.model_copy(update=update) for t in played])
        reseal(folder)

    return plant


def terms_of(t: Trajectory, **values: float | None) -> Trajectory:
    terms = tuple(
        term.model_copy(update={"value": values[term.name]}) if term.name in values else term
        for term in t.reward_terms
    )
    return t.model_copy(update={"reward_terms": terms})


def gold_of(folder: Path) -> dict[str, Trajectory]:
    played = read_trajectories(folder / "episodes" / "attacks")
    return {t.task_id: t for t in played if t.id.endswith("#gold")}


# --- the split -------------------------------------------------------------------------------------------


def leak(change: Callable[[Task], Task]) -> Callable[[Path, Base], None]:
    """A held-out task among the training tasks, with the seed that follows then."""

    def plant(folder: Path, _: Base) -> None:
        (leaked, *_rest) = list(read_tasks(folder / "tasks" / "heldout.jsonl"))
        sha256 = edit_tasks(folder, "train", lambda tasks: [*tasks, change(leaked)])
        with_seed_that_follows(folder, train=sha256)

    return plant


def with_seed_that_follows(folder: Path, **datasets: str) -> None:
    certificate = read_certificate(folder)
    named = {**certificate.datasets, **datasets}
    seed = committed_seed(named, certificate.sides, certificate.conditions)
    for side in certificate.sides:
        edit_episodes(folder, side, lambda played: seeds_as_expected(folder, played, seed))

    def change(document: dict[str, Any]) -> None:
        document["datasets"] = named
        document["conditions"]["seed"] = seed

    reseal(folder, change)


def reworded(task: Task) -> Task:
    *before, last = task.prompt
    said = last.model_copy(update={"content": "Would you be so kind: " + last.content})
    return with_id(task.model_copy(update={"prompt": (*before, said)}), "another-id")


def shouted(task: Task) -> Task:
    *before, last = task.prompt
    said = last.model_copy(update={"content": f"  {last.content.upper()} !"})
    return with_id(task.model_copy(update={"prompt": (*before, said)}), "another-id")


def trained_on_a_held_out_question(folder: Path, _: Base) -> None:
    task = next(t for t in read_tasks(folder / "tasks" / "heldout.jsonl") if not t.truth.user_turns)
    trained = next(read_tasks(folder / "tasks" / "train.jsonl")).id
    edit_json(folder / "run" / "trained_on.json", lambda on: on.update({trained: [question_key(task)]}))
    reseal(folder)


def trained_on_tasks_that_are_left_out(folder: Path, _: Base) -> None:
    played = set(json.loads((folder / "run" / "trained_on.json").read_text()))
    sha256 = edit_tasks(folder, "train", lambda tasks: [t for t in tasks if t.id not in played])
    with_seed_that_follows(folder, train=sha256)


# --- the tasks -------------------------------------------------------------------------------------------


def without_a_task(folder: Path) -> str:
    """A task less, everywhere but in the tasks' own file."""
    dropped = next(read_tasks(folder / "tasks" / "heldout.jsonl")).id
    for side in (*read_certificate(folder).sides, "attacks"):
        edit_episodes(folder, side, lambda played: [t for t in played if t.task_id != dropped])
    return dropped


def a_task_dropped_with_its_file(folder: Path, _: Base) -> None:
    dropped = without_a_task(folder)
    sha256 = edit_tasks(folder, "heldout", lambda tasks: [t for t in tasks if t.id != dropped])
    reseal(folder, lambda document: document["datasets"].update(heldout=sha256))


def a_task_dropped_and_the_manifest_forgotten(folder: Path, _: Base) -> None:
    manifest = (folder / "run" / "manifest.json").read_text()
    dropped = without_a_task(folder)
    sha256 = edit_tasks(folder, "heldout", lambda tasks: [t for t in tasks if t.id != dropped])
    (folder / "run" / "manifest.json").write_text(manifest)
    with_seed_that_follows(folder, heldout=sha256)


def a_task_called_a_leak(folder: Path, _: Base) -> None:
    dropped = without_a_task(folder)
    reseal(folder, lambda document: document["excluded"].update({dropped: "a training task asks the same"}))


def a_task_dropped_from_one_side(folder: Path, _: Base) -> None:
    dropped = next(read_tasks(folder / "tasks" / "heldout.jsonl")).id
    edit_episodes(folder, "trained", lambda played: [t for t in played if t.task_id != dropped])
    reseal(folder)


def a_check_made_easier(folder: Path, _: Base) -> None:
    def easier(task: Task) -> Task:
        check = {"type": "regex", "value": "."}
        document = task.model_dump(mode="json")
        document["reward_spec"]["ground_truth"]["final_answer"] = check
        return Task.model_validate(document)

    sha256 = edit_tasks(folder, "heldout", lambda tasks: [easier(task) for task in tasks])
    reseal(folder, lambda document: document["datasets"].update(heldout=sha256))


# --- the episodes ----------------------------------------------------------------------------------------


def the_luckiest_of_ten_seeds(folder: Path, _: Base) -> None:
    lucky = 7
    for side in read_certificate(folder).sides:
        edit_episodes(folder, side, lambda played: seeds_as_expected(folder, played, lucky))
    reseal(folder, lambda document: document["conditions"].update(seed=lucky))


def seeds_of_one_side(folder: Path, _: Base) -> None:
    edit_episodes(folder, "trained", lambda played: seeds_as_expected(folder, played, 7))
    reseal(folder)


def the_best_attempt_told_twice(folder: Path, _: Base) -> None:
    def twice(played: list[Trajectory]) -> list[Trajectory]:
        first = {t.task_id: t for t in played if t.attempt == 0}
        return [
            first[t.task_id].model_copy(update={n: getattr(t, n) for n in ("id", "attempt", "seed")})
            for t in played
        ]

    edit_episodes(folder, "trained", twice)
    reseal(folder)


def failures_left_out(folder: Path, _: Base) -> None:
    edit_episodes(folder, "trained", lambda played: [t for t in played if t.attempt == 0])
    reseal(folder)


def failures_called_broken(folder: Path, _: Base) -> None:
    def broken(t: Trajectory) -> Trajectory:
        emptied = terms_of(t, **dict.fromkeys([term.name for term in t.reward_terms]))
        return emptied.model_copy(
            update={"stop_reason": StopReason.FAILED, "errors": ("the server was down",)}
        )

    edit_episodes(folder, "baseline", lambda played: [broken(t) if t.attempt else t for t in played])
    reseal(folder)


def successes_written_in(folder: Path, _: Base) -> None:
    edit_episodes(folder, "trained", lambda played: [terms_of(t, success=1.0, partial=1.0) for t in played])
    reseal(folder)


def failures_written_in(folder: Path, _: Base) -> None:
    edit_episodes(folder, "attacks", lambda played: [terms_of(t, success=0.0) for t in played])
    reseal(folder)


def another_weight_in_the_terms(folder: Path, _: Base) -> None:
    def heavier(t: Trajectory) -> Trajectory:
        terms = tuple(term.model_copy(update={"weight": 3 * term.weight}) for term in t.reward_terms)
        return t.model_copy(update={"reward_terms": terms})

    edit_episodes(folder, "trained", lambda played: [heavier(t) for t in played])
    reseal(folder)


def as_gold(folder: Path, *, with_tokens: bool) -> None:
    """The trained side says what the plan says, with all that follows from it."""
    gold = gold_of(folder)
    tokenizer = load_tokenizer(str(folder / "weights" / "baseline"))

    def played_well(t: Trajectory) -> Trajectory:
        turns = []
        for turn in gold[t.task_id].turns:
            ids = tuple(tokenizer.encode(turn.completion.text, add_special_tokens=False))
            update = (
                {"token_ids": ids, "logprobs": (-0.1,) * len(ids)}
                if with_tokens
                else {
                    "token_ids": t.turns[0].completion.token_ids,
                    "logprobs": t.turns[0].completion.logprobs,
                }
            )
            added = t.turns[0].added_token_ids if not turns else (5,)
            completion = turn.completion.model_copy(update=update)
            turns.append(turn.model_copy(update={"completion": completion, "added_token_ids": added}))
        kept = ("final_answer", "stop_reason", "reward_terms", "state_results", "read_only")
        update = {name: getattr(gold[t.task_id], name) for name in kept}
        return t.model_copy(update={**update, "turns": tuple(turns)})

    edit_episodes(folder, "trained", lambda played: [played_well(t) for t in played])


def texts_replaced(folder: Path, _: Base) -> None:
    as_gold(folder, with_tokens=False)
    reseal(folder)


def texts_and_tokens_replaced(folder: Path, _: Base) -> None:
    as_gold(folder, with_tokens=True)
    reseal(folder, lambda document: document["conditions"].update(max_new_tokens=500))


def the_tape_and_the_results(folder: Path, _: Base) -> None:
    """A tool's answer is another one in the episode alone."""

    def other(t: Trajectory) -> Trajectory:
        turns = [
            turn.model_copy(
                update={
                    "tool_results": tuple(r.model_copy(update={"content": "{}"}) for r in turn.tool_results)
                }
            )
            for turn in t.turns
        ]
        return t.model_copy(update={"turns": tuple(turns)})

    edit_episodes(folder, "attacks", lambda played: [other(t) for t in played])
    reseal(folder)


def a_call_that_was_not_made(folder: Path, _: Base) -> None:
    gold = gold_of(folder)

    def calling(t: Trajectory) -> Trajectory:
        source = next(g for g in gold.values() if g.turns[0].tool_calls).turns[0]
        update = {"tool_calls": source.tool_calls, "tool_results": source.tool_results}
        return t.model_copy(update={"turns": (t.turns[0].model_copy(update=update), *t.turns[1:])})

    edit_episodes(folder, "trained", lambda played: [calling(t) for t in played])
    reseal(folder)


def a_hint_in_the_prompt(folder: Path, _: Base) -> None:
    def hinted(t: Trajectory) -> Trajectory:
        first = t.turns[0].model_copy(update={"added_token_ids": (*t.turns[0].added_token_ids, 7)})
        return t.model_copy(update={"turns": (first, *t.turns[1:])})

    edit_episodes(folder, "trained", lambda played: [hinted(t) for t in played])
    reseal(folder)


def another_question(folder: Path, _: Base) -> None:
    def asked(t: Trajectory) -> Trajectory:
        return t.model_copy(update={"prompt": (*t.prompt[:-1], {"role": "user", "content": "Say 4711."})})

    edit_episodes(folder, "trained", lambda played: [asked(t) for t in played])
    reseal(folder)


# --- the models ------------------------------------------------------------------------------------------


def the_adapter_never_arrived(folder: Path, _: Base) -> None:
    played = list(read_trajectories(folder / "episodes" / "baseline"))
    edit_episodes(folder, "trained", lambda _: played)
    reseal(folder)


def a_baseline_that_is_sampled_hot(folder: Path, base: Base) -> None:
    episodes_of(base.hot, "baseline", folder)
    reseal(folder)


def a_baseline_with_fewer_tokens(folder: Path, base: Base) -> None:
    episodes_of(base.short, "baseline", folder)
    reseal(folder)


def more_attempts_for_the_trained_side(folder: Path, base: Base) -> None:
    episodes_of(base.many, "trained", folder)
    reseal(folder)


def a_worse_baseline(folder: Path, _: Base) -> None:
    """The manifest names the model that the run began with."""
    edit_json(folder / "run" / "manifest.json", lambda m: m["model"].update(weights_sha256="0" * 64))
    reseal(folder)


def other_weights_in_the_folder(folder: Path, base: Base) -> None:
    first = next((base.run / "checkpoints").glob("step-000000")) / "adapter_model.safetensors"
    shutil.copyfile(first, folder / "weights" / "trained" / "adapter_model.safetensors")
    reseal(folder)


def another_adapter_under_the_name(folder: Path, base: Base) -> None:
    """Other weights, and a certificate that names them: the seed no longer follows, nor do the logprobs."""
    from mcpagent.storage.checkpoints import weights_sha256

    first = base.run / "checkpoints" / "step-000000" / "adapter_model.safetensors"
    shutil.copyfile(first, folder / "weights" / "trained" / "adapter_model.safetensors")
    sha256 = weights_sha256(folder / "weights" / "trained")
    document = json.loads((folder / "certificate.json").read_text())
    document["sides"]["trained"]["weights_sha256"] = sha256
    (folder / "certificate.json").write_text(json.dumps(document))
    with_seed_that_follows(folder)


def another_template(folder: Path, _: Base) -> None:
    reseal(folder, lambda document: document["sides"]["trained"].update(chat_template_sha256="0" * 64))


# --- tools, reward, records ------------------------------------------------------------------------------


def a_tool_described_otherwise(folder: Path, _: Base) -> None:
    def described(catalog: Any) -> None:
        catalog["tools"][0]["description"] += " It knows the answer."

    edit_json(folder / "cassette" / "catalog.json", described)
    reseal(folder)


def tools_of_another_run(folder: Path, _: Base) -> None:
    edit_json(folder / "run" / "manifest.json", lambda m: m.update(catalog_hash="0" * 64))
    reseal(folder)


def another_judge(folder: Path, _: Base) -> None:
    places = {"rule": "mcpagent.reward.other:grade"}
    reseal(folder, lambda document: document["grader"].update(places=places))


def another_reward_in_training(folder: Path, _: Base) -> None:
    reseal(folder, lambda document: document["reward"]["weights"].update(success=0.9))


def an_attack_that_is_not_told(folder: Path, _: Base) -> None:
    edit_episodes(folder, "attacks", lambda played: [t for t in played if not t.id.endswith("#silence")])
    reseal(folder)


def a_tame_attack(folder: Path, _: Base) -> None:
    def tame(played: list[Trajectory]) -> list[Trajectory]:
        silent = {t.task_id: t for t in played if t.id.endswith("#silence")}
        return [
            silent[t.task_id].model_copy(update={"id": t.id})
            if t.id.endswith("#the answer from memory")
            else t
            for t in played
        ]

    edit_episodes(folder, "attacks", tame)
    reseal(folder)


def a_proof_that_is_missing(folder: Path, _: Base) -> None:
    def cut(lines: list[Any]) -> list[Any]:
        del lines[-1]["canary_difference"]
        return lines

    edit_lines(folder / "run" / "metrics.jsonl", cut)
    reseal(folder)


def a_proof_that_failed(folder: Path, _: Base) -> None:
    edit_lines(
        folder / "run" / "metrics.jsonl", lambda lines: [{**x, "canary_difference": 0.5} for x in lines]
    )
    reseal(folder)


def a_step_that_is_missing(folder: Path, _: Base) -> None:
    edit_lines(folder / "run" / "metrics.jsonl", lambda lines: lines[1:])
    reseal(folder)


def a_control_that_had_less(folder: Path, _: Base) -> None:
    def lie(document: dict[str, Any]) -> None:
        (control,) = document["figures"]["controls"].values()
        control.update(is_at_equal_cost=True, share_of_the_run=1.0)

    edit_lines(
        folder / "run" / "control-random-rewards.jsonl", lambda lines: [{**x, "cpu_s": 0.001} for x in lines]
    )
    reseal(folder, lie)


def a_gain(folder: Path, _: Base) -> None:
    def lie(document: dict[str, Any]) -> None:
        document["figures"]["gain"]["difference"].update(value=0.4, ci_low=0.2, ci_high=0.6)
        document["figures"]["gain"]["verdict"] = "b is better"

    reseal(folder, lie)


def a_narrow_interval(folder: Path, _: Base) -> None:
    reseal(folder, lambda document: document["figures"]["gain"]["difference"].update(ci_low=-0.01))


def a_cheap_trained_side(folder: Path, _: Base) -> None:
    reseal(folder, lambda document: document["figures"]["budget"]["trained"].update(sampled_tokens=3))


def a_page_that_says_more(folder: Path, _: Base) -> None:
    page = (
        (folder / "page.html").read_text().replace("points of task success", "points of task success (+40)")
    )
    (folder / "page.html").write_text(page)
    document = json.loads((folder / "certificate.json").read_text())
    from mcpagent.evaluate.certificate import file_hashes

    document["files"] = file_hashes(folder)
    (folder / "certificate.json").write_text(json.dumps(document))


def a_file_that_was_touched(folder: Path, _: Base) -> None:
    path = folder / "run" / "config.yaml"
    path.write_text(path.read_text() + "# nothing\n")


def a_tape_that_answers_otherwise(folder: Path, _: Base) -> None:
    path = folder / "cassette" / "calls.jsonl"
    path.write_text(path.read_text().replace("0", "1"))
    reseal(folder)


def a_tape_without_an_answer(folder: Path, _: Base) -> None:
    path = folder / "cassette" / "calls.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    reseal(folder)


Plant = Callable[[Path, Base], None]
CASES: dict[str, tuple[Plant, str]] = {
    "a held-out task among the training tasks": (leak(lambda task: task), "leaked split"),
    "the same question under another id": (leak(shouted), "leaked split"),
    "the same plan in other words": (leak(reworded), "leaked split"),
    "trained on a held-out question": (trained_on_a_held_out_question, "leaked split"),
    "training tasks that are left out": (trained_on_tasks_that_are_left_out, "training tasks changed"),
    "a task dropped with its file": (a_task_dropped_with_its_file, "seed chosen"),
    "a task dropped, the manifest forgotten": (a_task_dropped_and_the_manifest_forgotten, "tasks changed"),
    "a task called a leak": (a_task_called_a_leak, "tasks dropped"),
    "a task dropped from one side": (a_task_dropped_from_one_side, "tasks dropped"),
    "a check made easier": (a_check_made_easier, "seed chosen"),
    "the luckiest of ten seeds": (the_luckiest_of_ten_seeds, "seed chosen"),
    "other seeds on one side": (seeds_of_one_side, "seed chosen"),
    "the best attempt told twice": (the_best_attempt_told_twice, "not replayed"),
    "failures left out": (failures_left_out, "attempts picked"),
    "failures called broken": (failures_called_broken, "unscored hidden"),
    "successes written in": (successes_written_in, "verdict edited"),
    "failures of attacks written in": (failures_written_in, "verdict edited"),
    "another weight in the terms": (another_weight_in_the_terms, "verdict edited"),
    "texts replaced": (texts_replaced, "tokens edited"),
    "texts and tokens replaced": (texts_and_tokens_replaced, "other weights"),
    "results replaced": (the_tape_and_the_results, "results edited"),
    "a tape that answers otherwise": (a_tape_that_answers_otherwise, "results edited"),
    "a tape without an answer": (a_tape_without_an_answer, "results edited"),
    "a call that was not made": (a_call_that_was_not_made, "calls edited"),
    "an answer replaced": (all_of("trained", final_answer="It is 4711."), "ending edited"),
    "an ending replaced": (all_of("trained", stop_reason=StopReason.ANSWERED), "ending edited"),
    "a hint in the prompt": (a_hint_in_the_prompt, "prompt edited"),
    "another question": (another_question, "prompt edited"),
    "a stale adapter": (the_adapter_never_arrived, "stale adapter"),
    "a baseline that is sampled hot": (a_baseline_that_is_sampled_hot, "other weights"),
    "a baseline with fewer tokens": (a_baseline_with_fewer_tokens, "budget unequal"),
    "more attempts for the trained side": (more_attempts_for_the_trained_side, "budget unequal"),
    "a worse baseline": (a_worse_baseline, "other base"),
    "other weights in the folder": (other_weights_in_the_folder, "weights changed"),
    "another adapter under the name": (another_adapter_under_the_name, "other weights"),
    "another template": (another_template, "template changed"),
    "a tool described otherwise": (a_tool_described_otherwise, "tools changed"),
    "tools of another run": (tools_of_another_run, "tools changed"),
    "another judge": (another_judge, "judge swapped"),
    "another reward in training": (another_reward_in_training, "reward changed"),
    "an attack that is not told": (an_attack_that_is_not_told, "attacks dropped"),
    "a tame attack": (a_tame_attack, "attacks dropped"),
    "a proof that is missing": (a_proof_that_is_missing, "weight sync unproven"),
    "a proof that failed": (a_proof_that_failed, "weight sync unproven"),
    "a step that is missing": (a_step_that_is_missing, "weight sync unproven"),
    "a control that had less": (a_control_that_had_less, "control cheaper"),
    "a gain": (a_gain, "figure edited"),
    "a narrow interval": (a_narrow_interval, "figure edited"),
    "tokens not counted": (a_cheap_trained_side, "figure edited"),
    "a page that says more": (a_page_that_says_more, "page edited"),
    "a file that was touched": (a_file_that_was_touched, "evidence changed"),
}


FAST = (
    *("the same plan in other words", "the luckiest of ten seeds", "texts and tokens replaced"),
    *("failures called broken", "a stale adapter", "a baseline that is sampled hot", "a gain"),
)


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in FAST else pytest.mark.slow) for what in CASES]
)
def test_a_planted_fraud_is_named(what: str, base: Base, tmp_path: Path) -> None:
    plant, expected = CASES[what]
    folder = Path(shutil.copytree(base.folder, tmp_path / "certificate"))
    plant(folder, base)
    names = {fraud.name for fraud in check(folder, replay=100 if expected == "not replayed" else 0).frauds}
    assert expected in names and names <= FRAUDS.keys(), names


def test_the_certificate_that_the_frauds_start_from_holds(base: Base) -> None:
    outcome = check(base.folder, replay=100)
    assert list(outcome.frauds) == [] and outcome.not_checked == []


def test_every_fraud_that_the_check_can_name_has_been_planted() -> None:
    assert {name for _, name in CASES.values()} == FRAUDS.keys()
