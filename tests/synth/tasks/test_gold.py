"""Generated tasks, played in the real environment."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from mcpagent.config.environment import resource_path
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.policy.scripted import GoldPolicy, ScriptedPolicy
from mcpagent.servers.provider import builtin_servers
from mcpagent.synth.templates.rules import generate_dataset
from mcpagent.synth.templates.template import TemplateSet, load_templates
from mcpagent.tools.pool import ToolPool
from tests.synth.running import play

# What the shipped templates do not use: later user messages, a prepared workspace, a parallel group.
CONVERSATION = """\
name: conversation
complexity: complex
prompts: ["Quote {first} and {second}."]
user_turns: ["Post just the sum of the two to {channel}."]
slots: {first: ticker, second: ticker, channel: channel}
setup:
  slack:
    - {tool: send_slack_message, arguments: {channel: "{channel}", message: "prices, please"}}
plan:
  - {server: fmp, tool: fmp_get_quote, params: {symbol: "{first}"}, parallel_group: quotes}
  - {server: fmp, tool: fmp_get_quote, params: {symbol: "{second}"}, parallel_group: quotes}
  - server: slack
    tool: send_slack_message
    params: {channel: "{channel}", message: "${text(step1.price + step2.price)}"}
    user_turn: 1
answer: {type: number, value: "${step1.price + step2.price}", tolerance: 0.001}
reference_answer: "Posted ${step1.price + step2.price}."
state:
  slack:
    - call: {tool: get_slack_channel_history, arguments: {channel_id: "{channel}", limit: 2}}
      expect: {"messages[0].text": "${text(step1.price + step2.price)}", "messages[1].text": "prices, please"}
    - call: {tool: get_slack_channel_history, arguments: {channel_id: "{channel}", limit: 1}}
      user_turn: 0
      expect: {"messages[0].text": "prices, please"}
"""


async def generate(pool: ToolPool, templates: TemplateSet, count: int) -> tuple[Task, ...]:
    data = await generate_dataset(pool, templates, counts={"heldout": count}, seed=11)
    return data.tasks["heldout"]


def test_the_gold_plan_of_every_task_scores_one_and_silence_fails_in_the_real_environment() -> None:
    templates = load_templates(resource_path("templates/tasks"))

    async def run() -> tuple[Sequence[Task], list[Trajectory], list[Trajectory]]:
        async with ToolPool(builtin_servers()) as pool:
            tasks = await generate(pool, templates, 80)
            return (
                tasks,
                await play(pool, tasks, GoldPolicy(tasks)),
                await play(pool, tasks, ScriptedPolicy(lambda _: "")),
            )

    tasks, gold, silent = asyncio.run(run())
    assert {task.extra_info["template"] for task in tasks} == {t.name for t in templates.templates}
    assert [t.reward for t in gold] == [1.0] * 80
    assert [t.reward for t in silent] == [0.0] * 80


def test_a_conversation_with_a_prepared_workspace_is_grounded_like_any_other_task(tmp_path: Path) -> None:
    pools = resource_path("templates/tasks/pools.yaml").read_text()
    (tmp_path / "pools.yaml").write_text(pools)
    (tmp_path / "conversation.yaml").write_text(CONVERSATION)

    async def run() -> tuple[Sequence[Task], list[Trajectory]]:
        async with ToolPool(builtin_servers()) as pool:
            tasks = await generate(pool, load_templates(tmp_path), 5)
            return tasks, await play(pool, tasks, GoldPolicy(tasks))

    tasks, gold = asyncio.run(run())
    assert all(task.truth.user_turns and task.truth.setup for task in tasks)
    assert [t.reward for t in gold] == [1.0] * 5
