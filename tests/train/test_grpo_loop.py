"""The loop around the update: what ends a run, what it leaves behind, and what is replaced or kept."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mcpagent.config.sections import BudgetConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolResult
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import choose_checkpoint, damage, last_good_checkpoint
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.actor import Validation
from mcpagent.train.grpo import train_grpo
from mcpagent.train.health import HealthMonitor, StepReport
from mcpagent.train.objective.advantages import CreditSettings
from mcpagent.train.objective.grading import GradeSettings, Overlong
from mcpagent.train.run_state import GrpoRun, GrpoSettings, GrpoState, Observers
from mcpagent.train.task_order import TaskOrder
from mcpagent.train.update import UpdateSettings
from tests.train.world import VOCABULARY, frozen_as, make_learner, tiny_model, trajectory

PROMPT = [{"role": "user", "content": "?"}]
TASKS = [
    Task.model_validate({"prompt": PROMPT, "reward_spec": {"ground_truth": {"task_id": f"task-{i}"}}})
    for i in range(8)
]
Reward = Callable[[str, int, int], float]  # of a task's attempt at a step


def mixed(_task: str, _step: int, attempt: int) -> float:
    return float(attempt % 2)


class ScriptedActor:
    """Episodes out of a seed, three attempts at a task, each with two calls; rewards by rule. The ledger of
    its servers has a byte for each call."""

    def __init__(
        self, *, reward: Reward = mixed, successes: Sequence[float] = (), begins: float = 0.0
    ) -> None:
        self._reward, self._successes = reward, [begins, *successes]
        self.asked: list[list[str]] = []
        self.lost: dict[int, int] = {}  # by step: unscored episodes of a hundred of its evaluation
        self.ledger_bytes = 0
        self.before_episode: Callable[[], None] = lambda: None
        self.before_sync: Callable[[], None] = lambda: None
        self.is_resting, self.rests = False, 0

    def collect(
        self, tasks: Sequence[Task], *, step: int, round_: int = 0, on_episode: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        assert not self.is_resting, "an engine that sleeps gives no tokens"
        self.asked.append([task.id for task in tasks])
        made: list[Trajectory] = []
        for task in tasks:
            for attempt in range(3):
                self.before_episode()
                rng = random.Random(f"{task.id}/{attempt}/{step}/{round_}")
                tokens = [rng.randrange(VOCABULARY) for _ in range(4)]
                episode = trajectory(task.id, attempt, self._reward(task.id, step, attempt), tokens=[tokens])
                results = tuple(
                    ToolResult(call_id=str(i), server="fmp", tool="get_quote", content="1") for i in range(2)
                )
                self.ledger_bytes += len(results)
                turn = episode.turns[0].model_copy(update={"tool_results": results})
                made.append(episode.model_copy(update={"turns": (turn,)}))
                on_episode(made[-1])
        return made

    def roll_back(self, ledger_bytes: int) -> None:
        self.ledger_bytes = ledger_bytes

    def tool_metrics(self) -> JsonObject:
        return {}

    def rest(self) -> None:
        self.is_resting, self.rests = True, self.rests + 1

    def sync(self) -> JsonObject:
        self.before_sync()
        self.is_resting = False
        return {}

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> Validation:
        """Of a hundred episodes, as many successes as was said, and `lost` unscored."""
        assert not self.is_resting
        success, lost = self._successes[step], self.lost.get(step, 0)
        scored = None if lost == 100 else success * 100 / (100 - lost)
        return Validation(success=success, scored_success=scored, episodes=100, unscored=lost)


def a_run(
    folder: Path,
    *,
    actor: ScriptedActor | None = None,
    resume: bool = False,
    health: HealthMonitor | None = None,
    callbacks: Sequence[Any] = (),
    notes: list[str] | None = None,
    **settings: Any,
) -> GrpoRun:
    learner = make_learner(tiny_model(), learning_rate=0.001)
    run = RunFolder(folder) if resume else RunFolder.create(folder, config_yaml="", manifest={})
    state = GrpoState()
    if resume:
        checkpoint = last_good_checkpoint(run)
        assert checkpoint is not None
        state = GrpoState.from_json(learner.restore(checkpoint))
        run.truncate_after(state.step)
    defaults: dict[str, Any] = {
        "total_steps": 6,
        "save_every": 2,
        "eval_every": 0,
        "seed": 0,
        "penalty_after_success": 1.0,
        "grading": GradeSettings(),
        "update": UpdateSettings(use_reference=False),
    }
    return GrpoRun(
        learner=learner,
        actor=actor or ScriptedActor(),
        tasks=TASKS,
        order=TaskOrder(len(TASKS), batch_size=2, seed=0),
        validation=TASKS[:1],
        folder=run,
        settings=GrpoSettings(**{**defaults, **settings}),
        state=state,
        observers=Observers(
            health=health, callbacks=callbacks, note=(notes if notes is not None else []).append
        ),
    )


def kept(run: GrpoRun) -> list[int]:
    """Steps of the checkpoints that are there; each must be whole."""
    paths = run.folder.all_checkpoints()
    assert [damage(path) for path in paths] == [None] * len(paths)
    return [int(path.name.removeprefix("step-")) for path in paths]


def steps(run: GrpoRun) -> list[int]:
    return [record["step"] for record in run.folder.metrics()]


def test_a_run_keeps_its_beginning_each_interval_and_its_end(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", total_steps=5)
    assert train_grpo(run) == "completed"
    assert kept(run) == [0, 2, 4, 5]
    assert steps(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("budget", "done"),
    [
        (BudgetConfig(cpu_s=1e-9), 0),
        (BudgetConfig(wall_s=1e-9), 0),
        (BudgetConfig(tool_calls=24), 2),  # 2 tasks x 3 attempts x 2 calls a step: met as the second ends
        (BudgetConfig(tool_calls=25), 2),  # exceeded by the third step, which leaves no trace
    ],
)
def test_a_cap_that_is_reached_ends_the_run_with_a_checkpoint(
    budget: BudgetConfig, done: int, tmp_path: Path
) -> None:
    run = a_run(tmp_path / "run", budget=budget, save_every=100)
    reason = train_grpo(run)
    assert reason.startswith("budget.")
    assert reason.endswith(" is spent")
    assert steps(run) == list(range(1, done + 1))
    assert kept(run)[-1] == done
    assert run.state.spent.tool_calls <= (budget.tool_calls or 10**9) + 1
    assert run.actor.ledger_bytes == done * 12, "the servers count the calls of the steps that are kept"


def test_a_run_that_spent_its_budget_goes_on_with_a_larger_one_to_the_same_weights(tmp_path: Path) -> None:
    whole = a_run(tmp_path / "whole")
    train_grpo(whole)
    # Three steps of 2 tasks x 3 attempts x 2 calls.
    train_grpo(a_run(tmp_path / "broken", budget=BudgetConfig(tool_calls=36)))
    again = a_run(tmp_path / "broken", resume=True, budget=BudgetConfig(tool_calls=36))
    assert train_grpo(again) == "budget.tool_calls 36 is spent", "what was spent before the resume counts"
    resumed = a_run(tmp_path / "broken", resume=True, budget=BudgetConfig(tool_calls=1000))
    assert train_grpo(resumed) == "completed"
    ours, theirs = (load_file(run.folder.checkpoint_dir(6) / "model.safetensors") for run in (resumed, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_old_checkpoints_go_but_the_best_and_the_last_seen_healthy_stay(tmp_path: Path) -> None:
    actor = ScriptedActor(successes=[0.1, 0.9, 0.3, 0.3, 0.2, 0.1])
    run = a_run(tmp_path / "run", actor=actor, save_every=1, keep_checkpoints=2, eval_every=1)
    train_grpo(run)
    assert run.state.best_step == 2
    assert kept(run) == [2, 5, 6]


def test_the_last_step_is_compared_with_the_best_whatever_the_steps_between(tmp_path: Path) -> None:
    actor = ScriptedActor(successes=[0.1, 0.2, 0.3, 0.5, 0.6, 0.9])
    run = a_run(tmp_path / "run", actor=actor, eval_every=4)
    train_grpo(run)
    assert (run.state.best_step, run.state.best_success) == (6, 0.9)
    early = a_run(tmp_path / "early", actor=actor, eval_every=10)
    train_grpo(early)
    assert early.state.best_step is None, "nothing to compare it with"


def test_the_best_checkpoint_is_what_a_run_began_with_if_no_step_was_better(tmp_path: Path) -> None:
    actor = ScriptedActor(begins=0.7, successes=[0.6, 0.6, 0.5, 0.6, 0.7, 0.6])
    notes: list[str] = []
    run = a_run(tmp_path / "run", actor=actor, save_every=1, keep_checkpoints=1, eval_every=2, notes=notes)
    train_grpo(run)
    assert (run.state.best_step, run.state.best_success) == (0, 0.7)
    assert kept(run) == [0, 5, 6] and choose_checkpoint(run.folder.path).path == run.folder.checkpoint_dir(0)
    assert notes == ["before the first step: validation success 70%"]
    resumed = a_run(tmp_path / "run", actor=actor, resume=True, eval_every=2, notes=notes)
    train_grpo(resumed)
    assert len(notes) == 1, "it is measured once"
    better = a_run(tmp_path / "better", actor=ScriptedActor(begins=0.7, successes=[0.7] * 6), eval_every=2)
    train_grpo(better)
    assert better.state.best_step == 2, "as good, and trained"


def test_evaluations_that_lost_episodes_neither_win_by_it_nor_end_the_run(tmp_path: Path) -> None:
    # Step 2 looks perfect among the few that were scored; steps 3 and 4 lost theirs to a dead server.
    actor = ScriptedActor(successes=[0.4, 0.3, 0.0, 0.2, 0.5, 0.1])
    actor.lost = {2: 70, 3: 100, 4: 3}
    notes: list[str] = []
    run = a_run(tmp_path / "run", actor=actor, eval_every=1, patience=2, notes=notes)
    assert train_grpo(run) == "completed"
    assert run.state.best_step == 5 and run.state.best_success == 0.5
    assert [note.split(":")[0] for note in notes if "unscored" in note] == ["step 2", "step 3", "step 4"]
    records = run.folder.metrics()
    assert records[1]["validation_success"] == pytest.approx(1.0)
    assert (records[1]["validation_success_all"], records[1]["validation_unscored"]) == (0.3, 70)
    assert "validation_success" not in records[2] and records[2]["validation_success_all"] == 0.0
    # Two of a hundred are few enough to be evidence.
    actor.lost = {2: 2, 3: 2}
    again = a_run(tmp_path / "again", actor=actor, eval_every=1, patience=2)
    assert train_grpo(again) == "no better evaluation in 2 (training.patience)"


def test_a_run_ends_when_evaluations_no_longer_improve(tmp_path: Path) -> None:
    actor = ScriptedActor(successes=[0.1, 0.4, 0.4, 0.3, 0.9, 0.9])
    run = a_run(tmp_path / "run", actor=actor, eval_every=1, patience=2)
    assert train_grpo(run) == "no better evaluation in 2 (training.patience)"
    assert steps(run) == [1, 2, 3, 4]
    assert run.state.best_step == 2
    assert {2, 4} <= set(kept(run))
    again = a_run(tmp_path / "run", actor=actor, resume=True, eval_every=1, patience=2)
    assert train_grpo(again).startswith("no better evaluation")


def test_uniform_groups_give_way_to_fresh_tasks_for_so_many_rounds(tmp_path: Path) -> None:
    uniform = {"task-0", "task-1", "task-2", "task-3", "task-4"}

    def reward(task: str, _step: int, attempt: int) -> float:
        return 1.0 if task in uniform else float(attempt % 2)

    runs: list[list[list[str]]] = []
    for name in ("first", "again"):
        actor = ScriptedActor(reward=reward)
        run = a_run(tmp_path / name, actor=actor, total_steps=4, resample_rounds=2)
        train_grpo(run)
        runs.append(actor.asked)
        rounds = iter(actor.asked)
        for record in run.folder.metrics():
            seen: list[str] = []
            asked, resampled = next(rounds), 0
            missing = 2
            for round_ in range(3):
                assert len(asked) == missing
                seen += asked
                missing = sum(task in uniform for task in asked)
                if round_ == 2 or not missing:
                    break
                resampled += missing
                asked = next(rounds)
            assert len(set(seen)) == len(seen), "a task is attempted once a step"
            assert record["resampled_groups"] == resampled
            assert record["episodes"] == 6
            assert record["uniform_groups"] == missing
        assert next(rounds, None) is None
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("grading", "resampled"),
    [
        (GradeSettings(), 4),  # both groups, in both rounds: all attempts are alike
        (GradeSettings(credit=CreditSettings(advantage="reinforce++")), 0),  # against the batch
        (GradeSettings(control="rejection"), 0),  # successes are trained on as they are
        (GradeSettings(control="random"), 0),
        (GradeSettings(overlong=Overlong(penalty=1.0, max_tokens=4, buffer_tokens=4)), 4),  # equally long
    ],
)
def test_a_group_gives_way_only_where_it_has_no_gradient(
    grading: GradeSettings, resampled: int, tmp_path: Path
) -> None:
    actor = ScriptedActor(reward=lambda _task, _step, _attempt: 1.0)
    run = a_run(tmp_path / "run", actor=actor, total_steps=1, resample_rounds=2, grading=grading)
    train_grpo(run)
    (record,) = run.folder.metrics()
    assert record["resampled_groups"] == resampled
    assert (record["uniform_groups"] == 0) == (resampled == 0), "what is kept is what carries a gradient"


def test_the_sampler_rests_once_a_step_after_the_last_round_and_during_the_update(tmp_path: Path) -> None:
    actor = ScriptedActor(reward=lambda _task, _step, _attempt: 1.0, successes=[0.1, 0.2])
    rounds_before_updates: list[tuple[int, int]] = []

    def before_sync() -> None:
        assert actor.is_resting, "the update had the sampler's memory"
        rounds_before_updates.append((len(actor.asked), actor.rests))

    actor.before_sync = before_sync
    train_grpo(a_run(tmp_path / "run", actor=actor, total_steps=2, resample_rounds=2, eval_every=1))
    assert rounds_before_updates == [(3, 1), (6, 2)]


def test_penalties_begin_by_the_tasks_as_they_come_not_by_those_that_are_left(tmp_path: Path) -> None:
    """One of the two tasks always fails. Left out, it would leave half of the others' attempts: 1/3."""

    def reward(task: str, _step: int, attempt: int) -> float:
        return 0.0 if task == first_task else float(attempt == 1)

    run = a_run(tmp_path / "run", total_steps=1, resample_rounds=2, penalty_after_success=0.3)
    first_task = TASKS[run.order.batch(1)[0]].id
    run.actor = ScriptedActor(reward=reward)
    train_grpo(run)
    (record,) = run.folder.metrics()
    assert (record["resampled_groups"], record["penalty_active"]) == (1, False)
    assert record["success_rate"] == pytest.approx(1 / 3)


class Stopper:
    """A user's callback."""

    def __init__(self) -> None:
        self.seen: list[StepReport] = []

    def on_step(self, report: StepReport) -> None:
        self.seen.append(report)
        report.metrics["mine"] = 7.0

    def should_stop(self) -> str | None:
        return "I have seen enough" if len(self.seen) == 3 else None


def test_a_users_callback_sees_steps_adds_to_the_record_and_ends_the_run(tmp_path: Path) -> None:
    stopper = Stopper()
    run = a_run(tmp_path / "run", callbacks=[stopper])
    assert train_grpo(run) == "I have seen enough"
    assert [len(report.trajectories) for report in stopper.seen] == [6, 6, 6]
    assert [record["mine"] for record in run.folder.metrics()] == [7.0] * 3
    assert kept(run)[-1] == 3


def test_a_collapse_stops_the_run_and_the_last_good_weights_stay(tmp_path: Path) -> None:
    def reward(_task: str, step: int, attempt: int) -> float:
        return float(attempt > 0) if step <= 20 else 0.0

    health = HealthMonitor({"success_fall": 0.1})
    run = a_run(
        tmp_path / "run",
        actor=ScriptedActor(reward=reward),
        health=health,
        save_every=1,
        keep_checkpoints=1,
        total_steps=80,
    )
    reason = train_grpo(run)
    assert reason.startswith("health: success is lost")
    # Six episodes a step: 64 of them, from which on a mean says something, are eleven steps.
    assert 20 + 11 <= len(steps(run)) <= 20 + 16 + 3
    last = steps(run)[-1]
    # The last checkpoint that was seen healthy, before the three steps of the patience, and the last one.
    assert run.state.good_step == last - 4
    assert kept(run) == [last - 4, last]


def interrupting(run: GrpoRun, at: int) -> Callable[[], None]:
    """Ctrl-C, once, when the run is in step `at`."""
    sent: list[int] = []

    def interrupt() -> None:
        if run.state.step + 1 == at and not sent:
            sent.append(at)
            signal.raise_signal(signal.SIGINT)

    return interrupt


def test_ctrl_c_while_episodes_run_leaves_the_steps_before_it(tmp_path: Path) -> None:
    actor = ScriptedActor()
    run = a_run(tmp_path / "run", actor=actor, save_every=100)
    actor.before_episode = interrupting(run, 3)
    with pytest.raises(KeyboardInterrupt):
        train_grpo(run)
    assert (steps(run), kept(run)) == ([1, 2], [0, 2])


def test_ctrl_c_during_an_update_finishes_the_step_first(tmp_path: Path) -> None:
    actor, notes = ScriptedActor(), list[str]()
    run = a_run(tmp_path / "run", actor=actor, save_every=100, notes=notes)
    actor.before_sync = interrupting(run, 3)
    with pytest.raises(KeyboardInterrupt):
        train_grpo(run)
    assert (steps(run), kept(run)) == ([1, 2, 3], [0, 3])
    assert any("finishing step 3 of 6" in note for note in notes)
    whole, resumed = a_run(tmp_path / "whole"), a_run(tmp_path / "run", resume=True)
    train_grpo(whole)
    train_grpo(resumed)
    ours, theirs = (r.folder.checkpoint_dir(6) / "model.safetensors" for r in (resumed, whole))
    assert ours.read_bytes() == theirs.read_bytes()


def test_ctrl_c_twice_drops_the_step_and_its_half_made_weights(tmp_path: Path) -> None:
    actor = ScriptedActor()
    run = a_run(tmp_path / "run", actor=actor, save_every=2)

    def twice() -> None:
        if run.state.step == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    actor.before_sync = twice
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_grpo(run)
    assert kept(run) == [0, 2]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_damaged_checkpoint_is_refused_with_the_name_of_the_last_good_one(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    train_grpo(run)
    latest = run.folder.checkpoint_dir(6)
    weights = latest / "model.safetensors"
    whole = weights.read_bytes()
    for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        weights.write_bytes(broken)
        with pytest.raises(UserError, match=r"model.safetensors is not what was written") as caught:
            last_good_checkpoint(run.folder)
        assert "the last good one is step-000004" in (caught.value.remedy or "")
    weights.unlink()
    with pytest.raises(UserError, match=r"it lacks model.safetensors"):
        last_good_checkpoint(run.folder)
    weights.write_bytes(whole)
    assert last_good_checkpoint(run.folder) == latest
    (latest / "model-00002.safetensors").write_bytes(whole)
    with pytest.raises(UserError, match=r"model-00002.safetensors was added"):
        last_good_checkpoint(run.folder)
    (latest / "sha256.json").unlink()
    with pytest.raises(UserError, match=r"it lacks sha256.json"):
        last_good_checkpoint(run.folder)


def kl_records(
    folder: Path, kl_coef: float, *, target_kl: float | None = None, steps: int = 1
) -> list[JsonObject]:
    """Of a run whose model is far from its reference."""
    run = a_run(folder, total_steps=steps, update=UpdateSettings(), target_kl=target_kl)
    model = tiny_model()
    learner = make_learner(model, learning_rate=0.001, reference=frozen_as(tiny_model(seed=1), model))
    train_grpo(replace(run, learner=learner, state=GrpoState(kl_coef=kl_coef)))
    return list(run.folder.metrics())


def test_the_kl_coefficient_follows_how_far_the_policy_is_from_its_target(tmp_path: Path) -> None:
    def coefficients(name: str, target_kl: float) -> list[float]:
        return [r["kl_coef"] for r in kl_records(tmp_path / name, 0.5, target_kl=target_kl, steps=2)]

    # Ziegler et al. 2019: the error is held within 0.2 and a tenth of it is the change: 1.02 or 0.98 a step.
    assert coefficients("too far", 1e-6) == pytest.approx([0.5 * 1.02, 0.5 * 1.02**2])
    assert coefficients("near", 1e6) == pytest.approx([0.5 * 0.98, 0.5 * 0.98**2])
    (free,) = kl_records(tmp_path / "free", 0.5)
    assert free["kl_coef"] == 0.5
    # The target is a tenth below what the KL is: an error of 1 / 0.9 - 1 = 1/9.
    assert coefficients("close", 0.9 * free["kl"])[0] == pytest.approx(0.5 * (1 + 0.1 / 9))


def test_the_kl_enters_the_loss_with_the_coefficient_that_the_run_has_come_to(tmp_path: Path) -> None:
    # All episodes have the same length, so that the mean over their tokens is the mean over all.
    (without,), (with_kl,) = (kl_records(tmp_path / str(kl_coef), kl_coef) for kl_coef in (0.0, 0.25))
    assert with_kl["kl"] > 0.01
    assert with_kl["loss"] - without["loss"] == pytest.approx(0.25 * with_kl["kl"], rel=1e-4)
