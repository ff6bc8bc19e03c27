"""Run in TRL's environment: python bridge_rows.py MODEL DATA OUT. The scripted policies in `rollout_func`;
writes what TRL gets of each episode, next to what the policy wrote and what grading says."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoTokenizer

from mcpagent.bridges import trl as bridge
from mcpagent.core.trajectory import Completion
from mcpagent.env.tool_format import open_renderer
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import ScriptedPolicy
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.train.weight_sync import RolloutEngine
from tests.bridges.scripts import SCRIPTS, script


class Tokens:
    """A scripted policy whose texts are tokens; it notes what it wrote in each episode."""

    def __init__(self, play, tokenizer):
        self.play, self.tokenizer, self.wrote = play, tokenizer, {}

    async def complete(self, requests):
        return [self.completion(request) for request in requests]

    def completion(self, request):
        # The bridge's groups carry the step in their names; a script knows its task by id.
        task_id = request.episode_id.rpartition("@")[0]
        text = self.play(replace(request, episode_id=f"{task_id}#0"))
        ids = (*self.tokenizer(text, add_special_tokens=False).input_ids, self.tokenizer.eos_token_id)
        self.wrote.setdefault(task_id, []).append(ids)
        return Completion(text=text, token_ids=ids, logprobs=(-0.5,) * len(ids))

    async def release(self, episode_id): ...


def spans(ids, mask):
    """The sampled tokens, one list for each turn."""
    found, before = [], 0
    for token, is_sampled in zip(ids, mask, strict=True):
        if is_sampled and not before:
            found.append([])
        if is_sampled:
            found[-1].append(token)
        before = is_sampled
    return found


def main(model, data, out):
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = SimpleNamespace(
        model=torch.nn.Identity(),
        max_completion_length=1_000_000,
        temperature=1.0,
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(seed=0),
        accelerator=SimpleNamespace(process_index=0),
    )
    result = {}
    with bridge.open_dataset(data) as dataset:
        prompts = [row["prompt"] for row in dataset]
        host = next(iter(bridge._sources.values())).host
        tasks = list(host.tasks("train"))
        renderer = open_renderer(tokenizer, name=model, tool_format="auto")
        for name in SCRIPTS:
            policy = Tokens(script(name, tasks), tokenizer)
            engine = RolloutEngine(policy=policy, push=lambda: None, close=lambda: None)
            bridge._players[id(trainer)] = bridge._Player(engine, renderer, 1_000_000)
            rows = bridge.rollout_func(prompts, trainer)
            played = host.tools.io.run(
                collect(
                    list(attempts(tasks, per_task=1, seed=0)),
                    policy=ScriptedPolicy(script(name, tasks)),
                    tools=host.tools.pool,
                    settings=AgentSettings(sampling=Sampling()),
                )
            )
            result[name] = [
                {
                    "reward": reward,
                    "expected": trajectory.reward,
                    "sampled": spans(ids, mask),
                    "wrote": policy.wrote.get(trajectory.task_id, []),
                }
                for reward, ids, mask, trajectory in zip(
                    bridge.reward_func(**rows), rows["completion_ids"], rows["env_mask"], played, strict=True
                )
            ]
    Path(out, "rows.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
