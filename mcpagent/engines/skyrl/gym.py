"""The environment as SkyRL plays it: records that SkyRL reads, through skyrl_gym's own `make`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import CheckResult, CheckStatus, JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.engines.skyrl.config import ENV_ID
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.rollout.setup import agent_settings
from mcpagent.storage.packages import require

if TYPE_CHECKING:
    from mcpagent.tools.setup import Tools

_LABEL = "check"  # as in `checks.environment`: both play the same episodes
_REWARD_CHECK = "skyrl_gym gets the whole reward at the last step"


@dataclass(frozen=True)
class _Played:
    """An episode, and what SkyRL got of it: the sum of the steps' rewards, those before the last apart."""

    trajectory: Trajectory
    total: float
    early: float


class GymEpisodes:
    """Plays tasks as SkyRL's generator does, but for the model: rows of the dataset that it would be given,
    `skyrl_gym.make` for each, `init`, `step` and `close` on threads."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        """Starts the servers that environments of this configuration share; they end with the process."""
        from mcpagent.engines.skyrl.engine import env_settings
        from mcpagent.env.skyrl import register, start_servers

        register()
        self._config = config
        settings = env_settings(config, run_dir=folder)
        self._env_config: JsonObject = {name: value for name, value in settings.items() if name != "log_dir"}
        self._folder = folder
        self._played: list[_Played] = []
        self.tools: Tools = start_servers(self._env_config)

    def play(
        self, policy: Policy, tasks: Sequence[Task], *, on_done: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """One attempt at each task, in order."""
        from mcpagent.engines.skyrl.record import write_records

        path = self._folder / "records.jsonl"
        write_records(path, tasks, env_class=ENV_ID)
        rows: list[JsonObject] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

        def one(task: Task, row: JsonObject) -> _Played:
            played = self._episode(policy, task, row)
            on_done(played.trajectory)
            return played

        workers = min(self._config.skyrl.env_workers, max(len(rows), 1))
        with ThreadPoolExecutor(workers, thread_name_prefix="mcpagent-gym") as threads:
            played = list(threads.map(one, tasks, rows))
        self._played += played
        return [episode.trajectory for episode in played]

    def _episode(self, policy: Policy, task: Task, row: JsonObject) -> _Played:
        import skyrl_gym

        from mcpagent.env.skyrl import EPISODE, EpisodePlace

        seed = derive_seed(self._config.seed, "rollout", _LABEL, task.id, 0)
        place = EpisodePlace(group_id=task.id, attempt=0, seed=seed)
        extras = {name: value for name, value in row.items() if name not in ("prompt", "env_class")}
        extras |= {"max_turns": self._config.rollout.max_steps_per_episode, EPISODE: place}
        env: Any = skyrl_gym.make(row["env_class"], env_config=self._env_config, extras=extras)
        rewards: list[float] = []
        try:
            messages, info = env.init(row["prompt"])
            messages, is_done = list(messages), False
            sampling = agent_settings(self._config, max_context=None).sampling
            while not is_done:
                request = CompletionRequest(
                    episode_id=f"{task.id}#0",
                    sampling=sampling,
                    seed=derive_seed(seed, len(rewards)),
                    messages=tuple(messages),
                    tools=tuple(info.get("tools", ())),
                )
                (completion,) = self.tools.io.run(policy.complete([request]))
                output = env.step(completion.text)
                rewards.append(output["reward"])
                messages += [{"role": "assistant", "content": completion.text}, *output["observations"]]
                is_done = output["done"]
            trajectory = self.tools.io.run(env.trajectory())
        finally:
            env.close()
            self.tools.io.run(policy.release(f"{task.id}#0"))
        return _Played(trajectory, total=sum(rewards), early=sum(map(abs, rewards[:-1])))

    def checks(self) -> tuple[CheckResult]:
        """Whether what SkyRL was given is what the episodes are worth: an unscored one is worth nothing."""
        wrong = [
            f"{episode.trajectory.task_id}: {episode.total:g} of {episode.trajectory.reward}"
            for episode in self._played
            if episode.early or abs(episode.total - (episode.trajectory.reward or 0.0)) > 1e-9
        ]
        if wrong:
            detail = f"{len(wrong)} of {len(self._played)} do not: {wrong[0]}"
            failed = CheckStatus.FAIL
            return (CheckResult(name=_REWARD_CHECK, status=failed, detail=detail, remedy="mcpagent doctor"),)
        detail = f"{len(self._played)} episodes"
        return (CheckResult(name=_REWARD_CHECK, status=CheckStatus.PASS, detail=detail),)


@contextmanager
def gym_episodes(config: TrainConfig) -> Iterator[GymEpisodes]:
    """`GymEpisodes` with a folder of its own for the records. Raises UserError where something is missing."""
    require("gym", "hf", use="env check --engine skyrl")
    with TemporaryDirectory(prefix="mcpagent-gym-") as folder:
        yield GymEpisodes(config, Path(folder))
