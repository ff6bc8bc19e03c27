"""Run in Inspect's environment: python inspect_run.py DATA OUT.

Evaluates the scripted policies as models of Inspect; writes scores as JSON.
"""

import json
import sys
from pathlib import Path

from inspect_ai import eval as evaluate
from inspect_ai.model import ModelAPI, ModelOutput, modelapi
from inspect_ai.tool import ToolCall

from mcpagent.bridges.inspect_task import mcp_tasks
from mcpagent.env.parsing import parse_action
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.storage.datasets import read_tasks
from tests.bridges.scripts import SCRIPTS, script

PLAYS = {}


@modelapi(name="scripted")
class Scripted(ModelAPI):
    """A model of Inspect that is a function of messages and tools."""

    def __init__(self, model_name, **options):
        super().__init__(model_name, **options)

    async def generate(self, input, tools, tool_choice, config):
        return PLAYS[self.model_name](input, tools)


def play(name: str, tasks):
    written, ids = script(name, tasks), {task.prompt[-1].content: task.id for task in tasks}

    def output_of(input, tools):
        asked = next(m.text for m in input if m.role == "user")
        schemas = [
            {
                "type": "function",
                "function": {"name": t.name, "parameters": t.parameters.model_dump(exclude_none=True)},
            }
            for t in tools
        ]
        request = CompletionRequest(
            episode_id=f"{ids[asked]}#0",
            sampling=Sampling(),
            messages=[{"role": m.role, "content": m.text} for m in input],
            tools=schemas,
        )
        action = parse_action(written(request))
        output = ModelOutput.from_content("scripted", action.text)
        output.choices[0].message.tool_calls = [
            ToolCall(id=c.id, function=c.written_as or c.tool, arguments=c.arguments) for c in action.calls
        ] or None
        return output

    return output_of


def main(data: str, out: str) -> None:
    tasks = list(read_tasks(Path(data, "train.jsonl")))
    scores = {}
    for name in SCRIPTS:
        PLAYS[name] = play(name, tasks)
        (log,) = evaluate(mcp_tasks(data, "train"), model=f"scripted/{name}", log_dir=out, display="none")
        assert log.status == "success", log.error
        scores[name] = [
            {"id": s.id, "value": s.scores["verdict"].value, **(s.scores["verdict"].metadata or {})}
            for s in log.samples
        ]
    Path(out, "scores.json").write_text(json.dumps(scores))


if __name__ == "__main__":
    main(*sys.argv[1:])
