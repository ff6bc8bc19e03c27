"""The supervised loop: the warm start on demonstrations, and `mcpagent train --algo sft`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.interrupts import Abandoned, stopping, uninterrupted
from mcpagent.models.tokens import Renderer
from mcpagent.storage.checkpoints import rotate
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.budget import Budget, Meter, Spent
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
    keep_checkpoints: int | None = None  # None keeps all
    budget: Budget = field(default_factory=Budget)


@dataclass
class SftState:
    """What a resumed run must know besides weights, moments and random state."""

    step: int = 0
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def from_json(cls, saved: JsonObject) -> SftState:
        """What `as_json` gave."""
        return cls(step=saved["step"], spent=Spent(**saved["spent"]))

    def as_json(self) -> JsonObject:
        return {"step": self.step, "spent": dict(vars(self.spent))}


def train_sft(
    learner: Learner,
    demonstrations: Sequence[TrainSample],
    *,
    renderer: Renderer,
    run: RunFolder,
    settings: SftSettings,
    state: SftState,
    of_tools: JsonObject,
    on_step: Callable[[JsonObject], None],
    note: Callable[[str], None] = lambda _: None,
) -> str:
    """Minimise the mean negative log-likelihood of the demonstrations' own tokens, a batch a step; returns
    what ended the run. `of_tools` is what making the demonstrations came to: it joins the first record.

    Everything a step uses is a function of its number, so a resumed run continues exactly. Ctrl-C finishes
    the step, leaves a checkpoint and is raised again.
    """
    meter, processes = Meter(settings.budget, state.spent), learner.processes
    order = TaskOrder(len(demonstrations), batch_size=settings.batch_size, seed=settings.seed)

    def save_if_missing() -> None:
        folder = run.checkpoint_dir(state.step)
        if not folder.exists():
            meter.read()
            learner.save(folder, state=state.as_json())
            rotate(run, keep=settings.keep_checkpoints, spare=())

    def one_step(step: int) -> None:
        own = [] if step <= settings.copy_steps else order.batch(step - settings.copy_steps)
        samples = _samples(step, [demonstrations[i] for i in own], renderer, settings)
        record = _update(learner, samples, settings, step) | (of_tools if step == first else {})
        if processes.is_first:
            run.append_metrics(record)
        state.step, state.spent.steps = step, state.spent.steps + 1
        if step % settings.save_every == 0:
            processes.from_first(save_if_missing)
        on_step(record)

    first, reason = state.step + 1, None
    learner.model.train()
    try:
        while state.step < settings.total_steps and (reason := processes.from_first(meter.reached)) is None:
            with uninterrupted(lambda: note("finishing the step before it stops; Ctrl-C again drops it")):
                one_step(state.step + 1)
    except Abandoned:
        raise
    except KeyboardInterrupt:
        stopping()
        processes.from_first(save_if_missing)
        raise
    processes.from_first(save_if_missing)
    learner.model.eval()
    return reason or "completed"


def _samples(
    step: int, own: Sequence[TrainSample], renderer: Renderer, settings: SftSettings
) -> list[TrainSample]:
    """What a step trains on: its demonstrations with copies among them, or copies alone."""
    # Copies are short: twice as many cost about as much as a batch of demonstrations.
    copies = settings.copy_mix if own else 2 * settings.batch_size
    return [*own, *copy_samples(renderer, count=copies, seed=derive_seed(settings.seed, "copy", step))]


def _update(learner: Learner, samples: Sequence[TrainSample], settings: SftSettings, step: int) -> JsonObject:
    """One optimiser step on the samples, shared out over the processes; its record."""
    started, processes = time.process_time(), learner.processes
    tokens = sum(s.loss_tokens for s in samples)
    total = 0.0
    processes.seed_torch(settings.seed, step)
    for batch in learner.batches(processes.share(samples), max_tokens=settings.micro_batch_tokens):
        logprobs, _ = learner.score(batch)
        loss = -logprobs.sum() / tokens
        learner.backward(loss)
        total += float(loss.detach())
    norm, factor = learner.step(step)
    return {
        "step": step,
        "phase": "copy" if step <= settings.copy_steps else "demonstrations",
        "loss": processes.sum([total])[0],
        **({"overflowed_steps": 1} if norm is None else {"grad_norm": norm}),
        "learning_rate_factor": factor,
        "tokens": tokens,
        "cpu_s": time.process_time() - started,
        "rss_mb": resident_mib(),
    }
