"""SkyRL's generator with mcpagent's episodes: the same tokens, and failed ones masked instead of zeros."""
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import skyrl_gym
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator, TrajectoryOutput

from mcpagent.core.seeds import derive_seed
from mcpagent.core.trajectory import Completion, FinishReason, StopReason, Trajectory
from mcpagent.engines.skyrl.credit import CUT, FAILED
from mcpagent.env.skyrl import ENV_ID, EPISODE, EpisodePlace, MCPToolEnv, start_servers
from mcpagent.errors import EpisodeError, RunError
from mcpagent.models.tokens import Renderer
from mcpagent.tools.setup import Tools
from mcpagent.train.grpo import success_rate_of_all
from mcpagent.train.objective.advantages import apply_penalty

_CUT = (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW)


MAX_FAILED_SHARE = 0.5  # of the episodes of a batch; past it the run ends


class MCPGenerator(SkyRLGymGenerator):
    """SkyRL's generator, whose episodes are those of `MCPToolEnv` token by token as they are without SkyRL.

    At most `max_open` episodes are open at once, on no thread of their own. One that fails is masked, and not
    a reward of 0; past `max_failed_share` of a batch the run ends. `played` are the episodes of the batches
    since they were last taken, by phase.
    """

    def __init__(
        self,
        *args: Any,
        renderer: Renderer,
        max_open: int,
        max_failed_share: float = MAX_FAILED_SHARE,
        penalty_after_success: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._renderer = renderer
        self._max_open, self._max_failed_share = max_open, max_failed_share
        self._penalty_after_success, self._seed = penalty_after_success, seed
        self.penalty_active = False
        self.played: dict[str, list[Trajectory]] = {"train": [], "eval": []}
        self._slots = asyncio.Semaphore(max_open)
        self._label, self._tools = "", None
        self._errors: list[str] = []

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:
        """SkyRL's output of the batch. Raises RunError if too many episodes failed."""
        metadata = input_batch.get("batch_metadata")
        phase = "train" if metadata is None else metadata.training_phase
        self._label = f"{phase}-{0 if metadata is None else metadata.global_step or 0}"
        self._slots, self._errors = asyncio.Semaphore(self._max_open), []
        # Servers start before a loop depends on it.
        environment = getattr(self.skyrl_gym_cfg, ENV_ID, {})
        self._tools = await asyncio.to_thread(start_servers, environment)
        output = await super().generate(input_batch, disable_tqdm)
        trajectories = [metrics.pop("trajectory", None) for metrics in output["env_metrics"]]
        self._check_failed(output["stop_reasons"])
        scored = [t for t in trajectories if t is not None]
        if phase == "train":
            self.penalty_active |= success_rate_of_all(scored) >= self._penalty_after_success
            for place, trajectory in enumerate(trajectories):
                if trajectory is not None and output["stop_reasons"][place] != FAILED:
                    (counted,) = apply_penalty([trajectory], active=self.penalty_active)
                    trajectories[place] = counted
                    output["rewards"][place][-1] = counted.reward or 0.0
        self.played[phase] += [t for t in trajectories if t is not None]
        return output

    def _check_failed(self, stop_reasons: Sequence[str]) -> None:
        failed = sum(reason == FAILED for reason in stop_reasons)
        if failed > self._max_failed_share * len(stop_reasons):
            raise RunError(
                f"{failed} of the {len(stop_reasons)} episodes of a batch failed, past "
                f"the share that may fail ({self._max_failed_share}); the first error: {self._errors[0]}",
                remedy="fix the servers (mcpagent env check), or raise the share",
            )

    async def agent_loop(
        self,
        prompt: Any,
        env_class: str,
        env_extras: dict[str, Any],
        max_tokens: int,
        max_input_length: int,
        sampling_params: dict[str, Any] | None = None,
        trajectory_id: Any = None,
        cache_salt: str | None = None,
        **_: Any,
    ) -> TrajectoryOutput:
        """One episode: what the model saw and wrote, its reward on its last token."""
        begun = time.monotonic()
        session = uuid.uuid4().hex if trajectory_id is None else trajectory_id.to_string()
        params = sampling_params or get_sampling_params_for_backend(
            self.generator_cfg.inference_engine.backend, self.generator_cfg.sampling_params
        )
        play = _Play(max_context=max_input_length + max_tokens, max_tokens=max_tokens)
        env: MCPToolEnv | None = None
        async with self._slots:
            try:
                env = self._made(env_class, env_extras, session, trajectory_id)
                ask = self._asking(session, params, cache_salt)
                await self._play(env, prompt, play, ask)
                trajectory = await self._on_tools(env.trajectory())
                errors = list(trajectory.errors)
            except Exception as error:  # noqa: BLE001 - boundary: one exception would end the whole batch
                errors = [f"{type(error).__name__}: {error}"]
                trajectory = None
            finally:
                if env is not None:
                    await self._on_tools(env.end())
                await self.inference_engine_client.finish_session(session)
        metrics = {} if env is None else env.get_metrics()
        reward, stop_reason = 0.0, FAILED
        if trajectory is None or trajectory.reward is None:
            self._errors.append(errors[0] if errors else "no reward could be computed")
            metrics |= {"unscored": 1.0, "success_all": 0.0}
        else:
            reward, stop_reason = trajectory.reward, _stop_reason(trajectory)
        return play.output(
            reward=reward,
            metrics={**metrics, "trajectory": trajectory},
            stop_reason=stop_reason,
            eos=self.tokenizer.eos_token_id,
            seconds=time.monotonic() - begun,
        )

    def _made(
        self, env_class: str, env_extras: dict[str, Any], session: str, trajectory_id: Any
    ) -> MCPToolEnv:
        attempt = 0 if trajectory_id is None else trajectory_id.repetition_id
        instance = session if trajectory_id is None else trajectory_id.instance_id
        place = EpisodePlace(
            group_id=f"{self._label}/{instance}",
            attempt=attempt,
            seed=derive_seed(self._seed, "rollout", self._label, instance, attempt),
            renders=True,
        )
        extras = {**env_extras, "max_turns": self.max_turns, EPISODE: place}
        environment = getattr(self.skyrl_gym_cfg, env_class, {})
        env = skyrl_gym.make(env_class, env_config=environment, extras=extras)
        if not isinstance(env, MCPToolEnv):
            raise EpisodeError(f"env_class {env_class} is not MCPToolEnv")
        return env

    async def _play(self, env: MCPToolEnv, prompt: Any, play: _Play, ask: Callable[..., Any]) -> None:
        """The loop of model steps and environment steps, as `rollout.collector` has it."""
        messages, metadata = await self._on_tools(env.begin(prompt))
        added = self._renderer.prompt_ids(messages, metadata.get("tools", ()))
        play.prompt_ids = list(added)
        done = bool(env.errors)
        while not done:
            play.context += added
            if len(play.context) >= play.max_context:
                await self._on_tools(env.finish(StopReason.CONTEXT_OVERFLOW))
                return
            completion = play.completed(await ask(play), decode=self._renderer.decode)
            out = await self._on_tools(env.take(completion, added_token_ids=added))
            play.add(added, completion)
            done = out["done"]
            if not done:
                added = self._renderer.suffix_ids(out["observations"], ended_by=play.context[-1])

    def _asking(self, session: str, params: dict[str, Any], cache_salt: str | None) -> Callable[..., Any]:
        async def ask(play: _Play) -> Any:
            return await self.inference_engine_client.generate(
                {
                    "prompt_token_ids": [list(play.context)],
                    "session_ids": [session],
                    "sampling_params": {
                        **params,
                        "max_tokens": play.room,
                        "stop_token_ids": sorted(self._renderer.stop_ids),
                    },
                    "cache_salt": cache_salt,
                    "routed_experts_prompt_starts": None,
                    "return_sample_support": False,
                },
                model=self.policy_model_name,
            )

        return ask

    async def _on_tools(self, work: Any) -> Any:
        assert isinstance(self._tools, Tools)
        return await asyncio.wrap_future(self._tools.io.submit(work))


@dataclass
class _Play:
    """The tokens of one episode as they grow. `response` is all after the prompt."""

    max_context: int
    max_tokens: int
    prompt_ids: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Tokens that the next completion may have."""
        return min(self.max_tokens, self.max_context - len(self.context))

    def completed(self, answer: Any, *, decode: Callable[[Sequence[int]], str]) -> Completion:
        """Return what the engine gave for one prompt. Raises EpisodeError if it gave no whole completion."""
        (ids,), (reason,) = answer["response_ids"], answer["stop_reasons"]
        if reason not in ("stop", "length"):
            raise EpisodeError(f"the inference engine ended a completion by {reason!r}")
        finish = FinishReason.STOP if reason == "stop" else FinishReason.LENGTH
        if finish is FinishReason.LENGTH and len(self.context) + len(ids) >= self.max_context:
            finish = FinishReason.OVERFLOW
        logprobs = answer.get("response_logprobs")
        return Completion(
            text=decode(ids),
            finish_reason=finish,
            token_ids=tuple(ids),
            logprobs=() if logprobs is None else tuple(logprobs[0]),
        )

    def add(self, added: Sequence[int], completion: Completion) -> None:
        """A turn that was taken; the prompt is no part of the response."""
        if self.response:
            self.response += added
            self.mask += [0] * len(added)
            self.logprobs += [0.0] * len(added)
        ids = completion.token_ids
        self.context += ids
        self.response += ids
        self.mask += [1] * len(ids)
        self.logprobs += completion.logprobs or [0.0] * len(ids)

    def output(
        self, *, reward: float, metrics: dict[str, Any], stop_reason: str, eos: int, seconds: float
    ) -> TrajectoryOutput:
        """As SkyRL takes it: never without a token, and without loss if the episode failed."""
        if not self.response:
            self.response, self.mask, self.logprobs = [eos], [0], [0.0]
        is_failed = stop_reason == FAILED
        output = TrajectoryOutput(
            response_ids=self.response,
            reward=[*[0.0] * (len(self.response) - 1), reward],
            stop_reason=stop_reason,
            loss_mask=[0] * len(self.mask) if is_failed else self.mask,
            prompt_ids=self.prompt_ids or [eos],
            rollout_logprobs=self.logprobs,
            env_metrics=metrics,
        )
        output.e2e_time = seconds
        return output


def _stop_reason(trajectory: Trajectory) -> str:
    return CUT if trajectory.stop_reason in _CUT else "stop"
