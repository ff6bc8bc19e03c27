"""The quickstart with a pretrained model: what fits into the minutes, its stages, what its settings show."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mcpagent.cli.quickstart import result_blocks
from mcpagent.demo.controls import run_controls
from mcpagent.demo.job import QuickstartJob, open_job
from mcpagent.demo.pace import fitted
from mcpagent.demo.pretrained import Pace, Pretrained, fit, width_of
from mcpagent.demo.quickstart import quickstart, run_stages
from mcpagent.demo.rates import measure
from mcpagent.errors import UserError
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from tests.demo.stages import noting

# A step of 32 episodes takes 60 s, with a third for what all of them share; loading takes 10 s, a supervised
# step 12 s, an episode of an evaluation 1.5 s.
PACE = Pace(
    supervised_s=12,
    steps_s=[(16, 8, 180), (8, 8, 100), (8, 4, 60), (4, 4, 40)],
    load_s=10,
    modest=32,
    eval_s=1.5,
    untrained_ratio=2.0,
    longest_turn=40,
)
SAMPLES = Path(__file__).parents[2] / "data" / "samples"
COUNTS = {"train": 40, "validation": 2, "heldout": 20}
SHORT = ("training.max_steps=2", "training.batch_size=2", "rollout.group_size=2", "rollout.max_new_tokens=4")


def planned(minutes: float, pace: Pace = PACE, *, validation: int = 0) -> Any:
    return fit(pace, minutes=minutes, warm_steps=8, heldout=160, validation=validation)


def test_an_hour_is_divided_among_the_parts() -> None:
    plan = planned(60)
    # A task costs 1.5 s an episode, greedy and sampled: 6 s for the warm start and the trained model, and 6 s
    # for the untrained one, whose episodes are twice as long, without and with shots: 15% of 3600 s are 90
    # tasks, 10% at 12 s are 30.
    assert (plan.eval_tasks, plan.untrained_tasks) == (90, 30)
    assert plan.seconds["evaluations"] == 4 * 10 + 90 * 6 + 30 * 12
    assert plan.seconds["warm start"] == 10 + 8 * 12
    # 3600 - 940 - 106 - 10 = 2544 s for steps of 8 x 4; of 8 x 8, at 60 * (1/3 + 2 * 2/3) = 100 s, there
    # would be 25 < 40.
    assert (plan.batch_size, plan.group_size, plan.steps) == (8, 4, 42)
    assert plan.seconds["GRPO"] == 10 + 42 * 60
    assert 3600 - 60 <= plan.total_s <= 3600
    assert "budget.wall_s=3634" in plan.settings(minutes=60)["grpo"]  # 1.3 * 3600 - 3576 + 2530


@pytest.mark.parametrize("minutes", [12, 20, 33, 60, 150, 600, 3000])
def test_a_plan_never_exceeds_its_minutes_and_more_minutes_never_give_fewer_episodes(minutes: float) -> None:
    plan, more = planned(minutes), planned(1.3 * minutes)
    assert plan.total_s <= 60 * minutes

    def episodes(plan: Any) -> int:
        return plan.steps * plan.batch_size * plan.group_size

    assert episodes(more) >= 0.9 * episodes(plan)
    assert more.batch_size * more.group_size >= plan.batch_size * plan.group_size


@pytest.mark.parametrize(
    ("minutes", "steps", "of_grpo"),
    # At 10 the evaluations take 4 * 10 + 20 * 6 + 10 * 12 = 280 s of 600, and loading 10; at 20 and 30
    # minutes 340 and 490 s, and 48 steps with loading 586: of 1800 s 714 are left for steps of 60.
    [(1, 8, 0), (10, 25, 0), (20, 48, 0), (30, 48, 11)],
)
def test_demonstrations_have_the_time_first_and_grpo_what_they_leave(
    minutes: float, steps: int, of_grpo: int
) -> None:
    plan = fit(PACE, minutes=minutes, heldout=160, validation=0)
    assert (plan.warm_steps, plan.steps) == (steps, of_grpo)
    assert plan.seconds["warm start"] == 10 + steps * 12
    assert plan.settings(minutes=minutes)["warm_start"] == [f"training.max_steps={steps}"]
    assert f"Warm start: {steps} steps" in str(plan)
    assert fit(PACE, minutes=minutes, heldout=160, validation=0, warm_steps=9).warm_steps == 9


@pytest.mark.parametrize(("longest_turn", "room"), [(40, 128), (190, 380)])
def test_a_turn_has_room_for_twice_what_the_demonstrations_show(longest_turn: int, room: int) -> None:
    plan = planned(60, replace(PACE, longest_turn=longest_turn))
    assert f"rollout.max_new_tokens={room}" in plan.settings(minutes=60)["grpo"]


def test_more_episodes_a_step_allow_a_larger_rate_by_the_square_root() -> None:
    of_16, of_64 = (
        replace(planned(60), batch_size=batch, group_size=group).settings(minutes=60)["grpo"]
        for batch, group in ((4, 4), (8, 8))
    )
    assert "optimization.learning_rate=1.4e-05" in of_16
    assert "optimization.learning_rate=2.8e-05" in of_64


def test_validation_tasks_are_played_before_and_every_six_steps_and_their_time_is_counted() -> None:
    plan = planned(60, validation=32)
    assert "training.eval_every=6" in plan.settings(minutes=60)["grpo"]
    # 32 episodes at 1.5 s are 48 s before the first step, and 8 s of each of 60 s; 2544 s as above.
    # There would be 39, and the last three would be compared with nothing.
    assert plan.steps == 36 and plan.seconds["GRPO"] == pytest.approx(10 + 48 + 36 * (60 + 8))
    assert "training.eval_every=0" in planned(60).settings(minutes=60)["grpo"]


@pytest.mark.parametrize("minutes", [21, 23, 27, 31, 44, 60, 600])
def test_the_last_step_is_one_of_those_that_are_compared(minutes: float) -> None:
    plan = planned(minutes, validation=16)
    assert plan.steps >= 8 and plan.steps % plan.eval_every == 0 and plan.eval_every in range(4, 10)


@pytest.mark.parametrize(
    ("pace", "minutes"),
    [
        (PACE, 6),
        # What comes around GRPO grows with the minutes: 61 had been said, and then 67.
        (replace(PACE, supervised_s=71, steps_s=[(4, 4, 220)], load_s=63, eval_s=5.3), 40),
    ],
)
def test_too_few_minutes_for_grpo_do_the_rest_and_say_how_many_are_enough(pace: Pace, minutes: float) -> None:
    plan = planned(minutes, pace)
    assert plan.steps == 0 and plan.seconds.keys() == {"evaluations", "warm start"}
    assert plan.warm_steps == 8 and plan.eval_tasks >= 20
    assert not any("max_steps" in setting for setting in plan.settings(minutes=minutes)["grpo"])
    (enough,) = map(int, re.findall(r"no GRPO, for which --minutes (\d+) are enough", str(plan)))
    assert planned(enough, pace).steps >= 8
    assert planned(enough - 1.5, pace).steps == 0


def test_a_machine_is_measured_once(tmp_path: Path) -> None:
    """There is no such model: to measure it again would fail."""
    notes: list[str] = []
    for settings, error in ((SHORT, None), ((), "there is no model folder")):
        pretrained = Pretrained(model=str(tmp_path / "none"), minutes=1, settings=settings)
        job = open_job(tmp_path / "run", seed=1, stages=noting(notes), pretrained=pretrained)
        job.progress.pace = {"with": list(SHORT), **asdict(PACE)}
        job.progress.fitted = None
        shutil.copytree(SAMPLES, job.out / "data", dirs_exist_ok=True)
        if error is None:
            assert fitted(job).progress.skips_grpo and "no GRPO" in notes[-1]
        else:
            with pytest.raises(UserError, match=error):
                fitted(job)


@pytest.mark.parametrize(("device", "at_once"), [("cpu", 32), ("cuda", 256)])
def test_a_device_plays_as_many_episodes_at_once_as_it_is_wide_or_as_the_user_says(
    device: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcpagent.models.load.resolve_device", lambda _: torch.device(device))
    for settings, expected in (((), at_once), (("rollout.num_envs=7",), 7)):
        _, grpo = Pretrained(model="none", settings=settings).configs([], {})
        assert grpo.rollout.num_envs == expected


def test_a_model_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    pretrained = Pretrained(model=str(tmp_path / "none"))
    with pytest.raises(UserError, match="there is no such checkpoint"):
        quickstart(tmp_path / "run", seed=1, stages=noting([]), pretrained=pretrained)
    assert not (tmp_path / "run").exists()


def job_of(model: Path, folder: Path, notes: list[str]) -> QuickstartJob:
    pretrained = Pretrained(model=str(model), settings=SHORT)
    return replace(
        open_job(folder / "run", seed=1, stages=noting(notes), pretrained=pretrained), counts=COUNTS
    )


@pytest.mark.system
@pytest.mark.slow
def test_every_stage_runs_and_a_second_call_says_the_same(tiny_checkpoint: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    job = job_of(tiny_checkpoint, tmp_path, notes)
    document = run_stages(job, run_controls)
    sides = ("untrained", "untrained_2_shots", "trained")
    assert [document[side]["metrics"]["task_success"]["n"] for side in sides] == [20, 20, 20]
    assert document["gains"].keys() == {"warm_start", "trained"}
    assert document["gains"]["trained"]["greedy"]["over"] in sides[:2]
    made = json.loads((job.out / "eval" / "untrained_2_shots.json").read_text())["provenance"]["shots"]
    assert made["count"] == len(made["tasks"]) == 2
    assert document["tool_calls"]["trajectories"] == document["tool_calls"]["servers"]
    assert {row["name"] for row in document["controls"]} == {
        *("random rewards", "more demonstrations", "rejection sampling"),
    }
    assert Path(document["report"]).stat().st_size > 100_000
    # How long it takes is said before the model is evaluated or trained.
    (said,) = [i for i, note in enumerate(notes) if note.startswith("this takes about ")]
    assert said < notes.index("evaluate the untrained model") < notes.index("warm start")
    # What follows from the pace is in the settings of the run, and what the user set stands.
    settings = yaml.safe_load((job.out / "config.yaml").read_text())
    assert settings["training"]["eval_tasks"] == 20 and settings["budget"]["wall_s"] > 60
    assert settings["training"]["max_steps"] == 2 and settings["rollout"]["group_size"] == 2
    warm = RunFolder.open(job.out / "warm_start")
    assert yaml.safe_load(warm.config_path.read_text())["sft"]["stop_early"] == 0.0
    # Two steps of two demonstrations; the control that goes on with them has all tasks.
    assert len(list(read_trajectories(warm.trajectories / "demonstrations.jsonl.zst"))) == 4
    more = job.out / "controls" / "more_demonstrations" / "trajectories" / "demonstrations.jsonl.zst"
    assert len(list(read_trajectories(more))) == COUNTS["train"]
    assert not (job.out / "pace").exists()
    answer = json.loads((job.out / "data" / "train.jsonl").read_text().splitlines()[0])
    assert "Answer:" in answer["prompt"][0]["content"]
    again: list[str] = []
    assert run_stages(job_of(tiny_checkpoint, tmp_path, again), run_controls) == document
    assert not again, "nothing is measured or played again"
    with pytest.raises(UserError, match="was begun with --model"):
        open_job(job.out, seed=1, stages=noting([]))


@pytest.mark.system
def test_without_time_for_grpo_the_warm_start_is_trained_evaluated_and_reported(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    job = job_of(tiny_checkpoint, tmp_path, notes)
    job.progress.pace = {"with": list(SHORT), **asdict(replace(PACE, steps_s=[(2, 2, 1e6)]))}
    document = run_stages(job, run_controls)
    assert any("no GRPO" in note for note in notes) and "GRPO on real episodes" not in notes
    assert not {"trained", "controls"} & document.keys() and document["gains"].keys() == {"warm_start"}
    assert document["checkpoint"] == str(job.warm_checkpoint)
    report = Path(document["report"])
    assert report.parent == job.out / "warm_start" and report.stat().st_size > 100_000
    shown = "\n".join(map(str, result_blocks(document, None)))
    assert "there was no time for GRPO" in shown
    again: list[str] = []
    assert run_stages(job_of(tiny_checkpoint, tmp_path, again), run_controls) == document
    assert not again


@pytest.mark.system
def test_the_work_of_a_step_is_counted_as_the_trainer_computes_it(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A pass of the trainer over the demonstrations of a step has exactly the tokens that are counted."""
    job = job_of(tiny_checkpoint, tmp_path, [])
    shutil.copytree(SAMPLES, job.out / "data", dirs_exist_ok=True)
    config = job.grpo.with_settings(model={"name": str(tiny_checkpoint)})
    rates, work = measure(config, replace(width_of(config), at_once=4), on_part=lambda *_: None)
    assert all(value >= 0 for value in vars(rates).values()) and rates.forward_s > 0
    few = work.samples[:4]
    alone = sum(len(sample) for sample in few)
    # Behind one list of tools the four share it; each of two attempts adds what comes after the prompt.
    assert work.tokens(few) < alone
    own = sum(len(sample) - sample.first_loss for sample in few)
    assert work.tokens([*few, *few]) - work.tokens(few) == own
    assert work.grpo_s(rates, batch=4, group=4) > work.grpo_s(rates, batch=4, group=2)
    assert work.evaluation_s(rates, tasks=8) > 0 and work.supervised_s(rates, batch=8) > 0


def test_a_quickstart_whose_tools_have_changed_since_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    open_job(tmp_path / "run", seed=1, stages=noting([]))
    file = tmp_path / "run" / "quickstart.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "catalog_hash": "of other tools"}))
    before = file.read_text()
    with pytest.raises(UserError, match="the tools have changed") as refused:
        open_job(tmp_path / "run", seed=1, stages=noting([]))
    assert refused.value.remedy == "begin another one with --out" and file.read_text() == before
