"""The supervised loop: the warm start on demonstrations, and `mcpagent train --algo sft`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.models.tokens import Renderer
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.copying import copy_samples
from mcpagent.train.learner import Learner
from mcpagent.train.memory import resident_mib
from mcpagent.train.order import TaskOrder
from mcpagent.train.samples import TrainSample


@dataclass(frozen=True, kw_only=True)
class SftSettings:
    """`copy_steps` of `total_steps` come first and train on copying; `copy_mix` copies join each later
    batch."""

    total_steps: int
    copy_steps: int = 0
    copy_mix: int = 0
    save_every: int
    batch_size: int
    micro_batch_tokens: int
    seed: int
    max_cpu_s: float | None = None  # of all steps together; past it the run ends with a checkpoint


@dataclass
class SftState:
    """What a resumed run must know besides weights, moments and random state."""

    step: int = 0
    cpu_s: float = 0.0  # of the steps so far


def train_sft(
    learner: Learner,
    demonstrations: Sequence[TrainSample],
    *,
    renderer: Renderer,
    run: RunFolder,
    settings: SftSettings,
    state: SftState,
    on_step: Callable[[JsonObject], None],
) -> None:
    """Minimise the mean negative log-likelihood of the demonstrations' own tokens, a batch a step.

    Everything a step uses is a function of its number, so a resumed run continues exactly.
    """
    order = TaskOrder(len(demonstrations), batch_size=settings.batch_size, seed=settings.seed)
    learner.model.train()
    while state.step < settings.total_steps and not _is_spent(state, settings):
        step = state.step + 1
        started = time.process_time()
        seed = derive_seed(settings.seed, "copy", step)
        if step <= settings.copy_steps:
            # Copies are short: twice as many cost about as much as a batch of demonstrations.
            samples = copy_samples(renderer, count=2 * settings.batch_size, seed=seed)
        else:
            samples = [demonstrations[i] for i in order.batch(step - settings.copy_steps)]
            samples += copy_samples(renderer, count=settings.copy_mix, seed=seed)
        tokens = sum(s.loss_tokens for s in samples)
        total = 0.0
        for batch in learner.batches(samples, max_tokens=settings.micro_batch_tokens):
            logprobs, _ = learner.score(batch)
            loss = -logprobs.sum() / tokens
            learner.backward(loss)
            total += float(loss.detach())
        norm, factor = learner.step(step)
        record: JsonObject = {
            "step": step,
            "phase": "copy" if step <= settings.copy_steps else "demonstrations",
            "loss": total,
            "grad_norm": norm,
            "learning_rate_factor": factor,
            "tokens": tokens,
            "cpu_s": time.process_time() - started,
            "rss_mb": resident_mib(),
        }
        run.append_metrics(record)
        state.step, state.cpu_s = step, state.cpu_s + record["cpu_s"]
        if step % settings.save_every == 0 or step == settings.total_steps or _is_spent(state, settings):
            learner.save(run.checkpoint_dir(step), state=vars(state))
        on_step(record)
    learner.model.eval()


def _is_spent(state: SftState, settings: SftSettings) -> bool:
    return settings.max_cpu_s is not None and state.cpu_s >= settings.max_cpu_s
