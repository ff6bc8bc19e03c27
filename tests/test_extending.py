"""The page "how to add a ...": each example is added to a copy of the package as the page says, and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import PACKAGE, ROOT

pytestmark = pytest.mark.system

PAGE = (ROOT / "docs" / "extending.md").read_text()
_FILE = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DIFF = re.compile(r"^```diff\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _apply(tree: Path, diff: str) -> None:
    """Make the changes of a diff: lines with + take the place of the line above them, if that has a -."""
    for name, hunk in re.findall(r"^--- (\S+)\n(.*?)(?=^---|\Z)", diff, re.MULTILINE | re.DOTALL):
        path = tree / name
        for change in re.findall(r"(?:^[ -].*\n)(?:^\+.*\n)+", hunk, re.MULTILINE):
            lines = change.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] != "+")
            text = path.read_text()
            assert text.count(before) == 1, f"{name} does not hold once: {before}"
            path.write_text(text.replace(before, "".join(line[1:] for line in lines if line[0] != "-")))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with everything added that the page adds."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(PACKAGE, folder / "mcpagent")  # with what is compiled already
    for name in ("configs", "templates", "data/samples"):
        shutil.copytree(ROOT / name, folder / name)
    for name, text in _FILE.findall(PAGE):
        (folder / name).parent.mkdir(exist_ok=True)
        assert not (folder / name).exists()
        (folder / name).write_text(text)
    for diff in _DIFF.findall(PAGE):
        _apply(folder, diff)
    return folder


def _run(tree: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _values(tree: Path, code: str) -> list[object]:
    """What the code prints last; it runs with the copy."""
    printed = _run(tree, "-c", f"import json, mcpagent\nprint(mcpagent.__file__)\n{code}")
    *_, place, values = printed.splitlines()
    assert Path(place).is_relative_to(tree)
    return json.loads(values)


def test_every_family_has_its_section() -> None:
    sections = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert sections == [
        "Advantage estimator",
        "Dialect",
        "Reward term",
        "Rollout backend",
        "Task template",
    ]
    assert len(_FILE.findall(PAGE)) == 5


def test_an_estimator_that_was_added_is_a_setting_that_computes(tree: Path) -> None:
    code = """
from mcpagent.core.registry import ADVANTAGES
from mcpagent.config.loader import load_train_config
from mcpagent.train.objective.advantages import GradedAttempt
config = load_train_config([], ["grpo.advantage=median"]).config
attempts = [GradedAttempt(sample=None, reward=r, turn_rewards_K=[0.0]) for r in (0.0, 1.0, 5.0, None)]
relative = ADVANTAGES.load(config.grpo.advantage).relative(attempts, [0.0, 1.0, 5.0, None], None, None)
print(json.dumps(relative))
"""
    assert _values(tree, code) == [[-1.0], [0.0], [4.0], None]  # the median is 1


def test_a_dialect_that_was_added_is_a_setting_that_reads_what_it_writes(tree: Path) -> None:
    code = """
from mcpagent.config.loader import load_train_config
from mcpagent.core.registry import DIALECTS
from mcpagent.env.parsing import parse_action
name = load_train_config([], ["rollout.tool_format=brackets"]).config.rollout.tool_format
text = DIALECTS.load(name).write([("a", {"x": "]]"}), ("b", {})])
read = parse_action(f"Look: {text}", tool_format=name)
broken = parse_action("[[{]]", tool_format=name)
print(json.dumps([[(c.tool, c.arguments) for c in read.calls], len(read.failures), len(broken.failures)]))
"""
    assert _values(tree, code) == [[["a", {"x": "]]"}], ["b", {}]], 0, 1]


def test_a_reward_term_that_was_written_is_a_setting_that_scores(tree: Path) -> None:
    code = """
from mcpagent.config.loader import load_train_config
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason
from mcpagent.reward.record import EpisodeRecord
from mcpagent.core.trajectory import total_reward
from mcpagent.reward.terms import load_reward
overrides = ["reward.terms=[my_terms:brief]", "reward.weights.brief=0.04"]
reward = load_reward(load_train_config([], overrides).config.reward)
truth = {"task_id": "t", "abstain": True, "final_answer": {"type": "string", "value": "no"}}
task = Task.model_validate({"prompt": [{"role": "user", "content": "?"}],
                            "reward_spec": {"ground_truth": truth}})
rewards = [
    total_reward(
        reward.grade(task, EpisodeRecord(turns=(), final_answer=text, stop_reason=StopReason.ANSWERED)).terms
    )
    for text in ("no", "word " * 40, "word " * 70)
]
print(json.dumps([round(value, 6) for value in rewards] + [reward.bounds.separates]))
"""
    # A success of one word; failures of 40 words, half of the term's weight, and of 70 words, none of it.
    assert _values(tree, code) == [1.04, 0.02, 0.0, True]


def test_a_task_template_that_was_added_makes_tasks_that_were_proved(tree: Path) -> None:
    out = ("--train", "4", "--validation", "1", "--heldout", "1", "--out", "data/mine")
    _run(tree, "-m", "mcpagent", "gen-data", "--templates", "my_templates", *out)
    records = [json.loads(line) for line in (tree / "data" / "mine" / "train.jsonl").read_text().splitlines()]
    assert {record["extra_info"]["template"] for record in records} == {"company-name"} and len(records) == 4
