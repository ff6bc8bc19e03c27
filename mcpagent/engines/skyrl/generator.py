"""SkyRL's generator with mcpagent's episodes: the same tokens, and failed ones masked instead of zeros."""
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator, TrajectoryOutput

from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import ENV_ID
from mcpagent.core.trajectory import Completion, FinishReason, Trajectory
from mcpagent.engines.skyrl.credit import CUT, FAILED
from mcpagent.engines.skyrl.env import (
    EnvConfig,
    episode_metrics,
    parse_config,
    start_servers,
    task_of,
)
from mcpagent.env.offer import discovery
from mcpagent.errors import EpisodeError, RunError
from mcpagent.models.tokens import Renderer
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.reward.terms import load_reward
from mcpagent.rollout.collector import AgentSettings, Attempt, run_attempt
from mcpagent.train.batch.samples import sample_from_trajectory
from mcpagent.train.grpo import success_rate_of_all
from mcpagent.train.objective.grading import TRUNCATED, apply_penalty

MAX_FAILED_SHARE = 0.5  # of the episodes of a batch; past it the run ends


class MCPGenerator(SkyRLGymGenerator):
    """SkyRL's generator, whose episodes are played as they are without SkyRL (`rollout.collector`).

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
        self._label, self._environment = "", EnvConfig()
        self._errors: list[str] = []

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:
        """SkyRL's output of the batch. Raises RunError if too many episodes failed."""
        metadata = input_batch.get("batch_metadata")
        phase = "train" if metadata is None else metadata.training_phase
        self._label = f"{phase}-{0 if metadata is None else metadata.global_step or 0}"
        self._slots, self._errors = asyncio.Semaphore(self._max_open), []
        self._environment = parse_config(getattr(self.skyrl_gym_cfg, ENV_ID, {}))
        await asyncio.to_thread(start_servers, self._environment)  # before a loop depends on them
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
                remedy="fix the servers: mcpagent env check",
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
        instance = session if trajectory_id is None else trajectory_id.instance_id
        number = 0 if trajectory_id is None else trajectory_id.repetition_id
        params = sampling_params or get_sampling_params_for_backend(
            self.generator_cfg.inference_engine.backend, self.generator_cfg.sampling_params
        )
        max_context = max_input_length + max_tokens
        policy = _SessionPolicy(
            asyncio.get_running_loop(),
            partial(self.inference_engine_client.generate, model=self.policy_model_name),
            {
                "session_ids": [session],
                "sampling_params": {**params, "stop_token_ids": sorted(self._renderer.stop_ids)},
                "cache_salt": cache_salt,
                "routed_experts_prompt_starts": None,
                "return_sample_support": False,
            },
            decode=self._renderer.decode,
            max_context=max_context,
        )
        environment = self._environment
        settings = AgentSettings(
            sampling=Sampling(max_new_tokens=max_tokens),
            limits=environment.limits(max_turns=self.max_turns),
            max_context_tokens=max_context,
            discovery=discovery(environment.tools),
            reward=load_reward(environment.reward),
        )
        trajectory: Trajectory | None = None
        async with self._slots:
            try:
                attempt = Attempt(
                    task=task_of(prompt, env_extras),
                    attempt=number,
                    group_id=f"{self._label}/{instance}",
                    seed=derive_seed(self._seed, "rollout", self._label, instance, number),
                )
                tools = start_servers(environment)
                playing = run_attempt(
                    attempt, policy=policy, tools=tools.pool, settings=settings, renderer=self._renderer
                )
                trajectory = await asyncio.wrap_future(tools.io.submit(playing))
            except Exception as error:  # noqa: BLE001 - boundary: one exception would end the whole batch
                self._errors.append(f"{type(error).__name__}: {error}")
            finally:
                await self.inference_engine_client.finish_session(session)
        if trajectory is not None and trajectory.reward is None:
            self._errors += trajectory.errors[:1] or ["no reward could be computed"]
        output = _output(trajectory, eos=self.tokenizer.eos_token_id)
        output.e2e_time = time.monotonic() - begun
        return output


class _SessionPolicy(Policy):
    """SkyRL's inference engines as the policy of one episode. They are asked on the `loop` that they live on;
    a completion ends with the context at the latest."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        generate: Callable[[dict[str, Any]], Coroutine[Any, Any, Any]],
        request: dict[str, Any],
        *,
        decode: Callable[[Sequence[int]], str],
        max_context: int,
    ) -> None:
        self._loop, self._generate, self._request = loop, generate, request
        self._decode, self._max_context = decode, max_context

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request. Raises EpisodeError if an engine gave no whole one."""
        return [await self._completion(request) for request in requests]

    async def release(self, episode_id: str) -> None:
        """The generator ends the session."""

    async def _completion(self, request: CompletionRequest) -> Completion:
        room = min(request.sampling.max_new_tokens, self._max_context - len(request.token_ids))
        sampling = {**self._request["sampling_params"], "max_tokens": room}
        asked = {
            **self._request,
            "prompt_token_ids": [list(request.token_ids)],
            "sampling_params": sampling,
        }
        answer = await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._generate(asked), self._loop)
        )
        (ids,), (reason,) = answer["response_ids"], answer["stop_reasons"]
        if reason not in ("stop", "length"):
            raise EpisodeError(f"the inference engine ended a completion by {reason!r}")
        logprobs = answer.get("response_logprobs")
        return Completion(
            text=self._decode(ids),
            finish_reason=FinishReason.STOP if reason == "stop" else FinishReason.LENGTH,
            token_ids=tuple(ids),
            logprobs=() if logprobs is None else tuple(logprobs[0]),
        )


def _output(trajectory: Trajectory | None, *, eos: int) -> TrajectoryOutput:
    """Return an episode as SkyRL takes it: never without a token, and without loss if it failed. Trajectory
    None: it raised an exception."""
    turns = () if trajectory is None else trajectory.turns
    prompt, response, mask, logprobs = [eos], [eos], [0], [0.0]
    if trajectory is not None and turns and turns[0].completion.token_ids:
        sample, start = sample_from_trajectory(trajectory), len(turns[0].added_token_ids)
        prompt, response = list(sample.token_ids_T[:start]), list(sample.token_ids_T[start:])
        mask, logprobs = list(map(int, sample.loss_mask_T[start:])), list(sample.sampler_logprobs_T[start:])
    reward, stop_reason = 0.0, FAILED
    if trajectory is not None and trajectory.reward is not None:
        reward, stop_reason = trajectory.reward, CUT if trajectory.stop_reason in TRUNCATED else "stop"
    return TrajectoryOutput(
        response_ids=response,
        reward=[*[0.0] * (len(response) - 1), reward],
        stop_reason=stop_reason,
        loss_mask=[0] * len(mask) if stop_reason == FAILED else mask,
        prompt_ids=prompt,
        rollout_logprobs=logprobs,
        env_metrics={**episode_metrics(turns, trajectory), "trajectory": trajectory},
    )
