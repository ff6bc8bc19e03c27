"""The supervised loop: the warm start on demonstrations, and `mcpagent train --algo sft`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.models.tokens import Renderer
from mcpagent.storage.checkpoints import rotate
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.budget import Budget, Meter, Spent
from mcpagent.train.callbacks import Abandoned, uninterrupted
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
    on_step: Callable[[JsonObject], None],
    note: Callable[[str], None] = lambda _: None,
) -> str:
    """Minimise the mean negative log-likelihood of the demonstrations' own tokens, a batch a step; returns
    what ended the run.

    Everything a step uses is a function of its number, so a resumed run continues exactly. Ctrl-C finishes
    the step, leaves a checkpoint and is raised again.
    """
    meter, processes = Meter(settings.budget, state.spent), learner.processes
    order = TaskOrder(len(demonstrations), batch_size=settings.batch_size, seed=settings.seed)
    learner.model.train()

    def save() -> None:
        processes.from_first(write)

    def write() -> None:
        folder = run.checkpoint_dir(state.step)
        if not folder.exists():
            meter.read()
            learner.save(folder, state=state.as_json())
            rotate(run, keep=settings.keep_checkpoints, spare=())

    def step_once(step: int) -> None:
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
        processes.seed_torch(settings.seed, step)
        for batch in learner.batches(processes.share(samples), max_tokens=settings.micro_batch_tokens):
            logprobs, _ = learner.score(batch)
            loss = -logprobs.sum() / tokens
            learner.backward(loss)
            total += float(loss.detach())
        norm, factor = learner.step(step)
        record: JsonObject = {
            "step": step,
            "phase": "copy" if step <= settings.copy_steps else "demonstrations",
            "loss": processes.sum([total])[0],
            **({"overflowed_steps": 1} if norm is None else {"grad_norm": norm}),
            "learning_rate_factor": factor,
            "tokens": tokens,
            "cpu_s": time.process_time() - started,
            "rss_mb": resident_mib(),
        }
        if processes.is_first:
            run.append_metrics(record)
        state.step, state.spent.steps = step, state.spent.steps + 1
        if step % settings.save_every == 0:
            save()
        on_step(record)

    reason: str | None = None
    try:
        while state.step < settings.total_steps and (reason := processes.from_first(meter.reached)) is None:
            with uninterrupted(lambda: note("finishing the step before it stops; Ctrl-C again drops it")):
                step_once(state.step + 1)
    except Abandoned:
        raise
    except KeyboardInterrupt:
        save()
        raise
    save()
    learner.model.eval()
    return reason or "completed"
