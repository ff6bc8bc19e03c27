"""Checks certificates where a model is needed: logprobs under the folder's own weights, and replays."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcpagent.config.loader import load_train_config
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.episode import EpisodeLimits
from mcpagent.env.offer import Discovery
from mcpagent.errors import UserError
from mcpagent.evaluate.certificate import BASELINE, TRAINED, Opened, open_certificate, other_version
from mcpagent.evaluate.certificate_check import Fraud, check_certificate
from mcpagent.policy.canary import TOLERANCE
from mcpagent.policy.contract import Sampling
from mcpagent.rollout.agent import AgentSettings
from mcpagent.rollout.collector import attempts, collect
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.atomic import write_text
from mcpagent.storage.checkpoints import ADAPTER_FILE
from mcpagent.storage.packages import missing
from mcpagent.tools.cassettes.cassette import Cassette
from mcpagent.tools.io_thread import IOThread

_MOST_APART = 20.0  # times the tolerance: the most that one token may be apart


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """`checked` and `not_checked` say what was derived again, and what could not be; `other_version` that,
    where something does not hold, another version of mcpagent derived it."""

    frauds: Sequence[Fraud]
    checked: Sequence[str]
    not_checked: Sequence[str]
    other_version: str | None

    def as_json(self) -> JsonObject:
        """The document of `certify --check --json`."""
        return {
            "holds": not self.frauds,
            "frauds": [{"name": f.name, "detail": f.detail, "where": f.where} for f in self.frauds],
            "checked": list(self.checked),
            "not_checked": list(self.not_checked),
            "other_version": self.other_version,
        }


def check(
    folder: Path,
    *,
    replay: int = 0,
    replay_seed: int | None = None,
    console: Console | None = None,
) -> CheckOutcome:
    """Derive everything in the folder again; with `replay`, play so many episodes of each side again. Raises
    UserError where the folder cannot be read, or has no weights to replay."""
    console = console or Console()
    opened = open_certificate(folder)
    checked = ["files", "page", "split", "seeds", "limits", "episodes carried out again", "reward", "figures"]
    not_checked: list[str] = []
    has_weights = all((folder / "weights" / side).is_dir() for side in (BASELINE, TRAINED))
    if not has_weights or missing("hf"):
        if replay:
            raise UserError(
                "has no weights to play with" if not has_weights else "playing needs torch and transformers",
                where=str(folder),
                remedy="check it without --replay" if not has_weights else 'pip install "mcpagent[hf]"',
            )
        frauds = check_certificate(opened)
        not_checked += ["tokens against texts", "logprobs under the weights", "replay"]
        return _outcome(opened, frauds, checked, not_checked)
    frauds = []
    drawn = random.Random(replay_seed)  # by chance: who makes a certificate must not know which
    for side in (BASELINE, TRAINED):
        with _weights(opened, side) as loaded:
            if side == BASELINE:
                frauds += check_certificate(opened, renderer=loaded.renderer, decode=loaded.renderer.decode)
            frauds += _scored_again(opened, side, loaded.model)
            if replay:
                frauds += _replayed(opened, side, loaded, replay, drawn, console)
    checked += ["tokens against texts", "logprobs under the weights"]
    (checked if replay else not_checked).append(f"replay of {replay} episodes a side" if replay else "replay")
    return _outcome(opened, frauds, checked, not_checked)


def _outcome(
    opened: Opened, frauds: Sequence[Fraud], checked: Sequence[str], not_checked: Sequence[str]
) -> CheckOutcome:
    other = other_version(opened.certificate) if frauds else None
    return CheckOutcome(frauds=frauds, checked=checked, not_checked=not_checked, other_version=other)


@contextmanager
def _weights(opened: Opened, side: str) -> Iterator[Any]:
    """The model of a side, from the folder's own weights. No code of theirs runs."""
    from mcpagent.train.build import load

    facts = opened.certificate.sides[side]
    with TemporaryDirectory(prefix="mcpagent-") as place:
        model = opened.folder / "weights" / side
        if (model / ADAPTER_FILE).is_file():
            copy = Path(place) / side
            shutil.copytree(model, copy)
            document = json.loads((copy / ADAPTER_FILE).read_text(encoding="utf-8"))
            base = str((opened.folder / "weights" / BASELINE).resolve())
            write_text(copy / ADAPTER_FILE, json.dumps({**document, "base_model_name_or_path": base}))
            model = copy
        settings = [f"model.name={json.dumps(str(model))}", f"rollout.tool_format={facts.tool_format}"]
        settings += [f"model.dtype={facts.dtype}", "rollout.backend=hf"]
        yield load(load_train_config([], settings, for_training=False).config)


def _scored_again(opened: Opened, side: str, model: Any) -> Iterator[Fraud]:
    """Episodes whose stored logprobs are not those of their tokens under these weights."""
    certificate = opened.certificate
    limit = TOLERANCE.get(certificate.sides[side].dtype, max(TOLERANCE.values()))
    for trajectory in opened.episodes[side]:
        stored = [value for turn in trajectory.turns for value in turn.completion.logprobs]
        if not stored:
            continue
        try:
            scored = _logprobs(model, trajectory, certificate.conditions.temperature)
            apart = [abs(a - b) for a, b in zip(stored, scored, strict=True)]
        except (IndexError, ValueError):
            yield Fraud("tokens edited", f"{trajectory.id}: tokens that the model does not have", side)
            continue
        mean = sum(apart) / len(apart)
        # Not `>`: a difference that is not a number must not pass.
        if not mean <= limit or not max(apart) <= _MOST_APART * limit:
            yield Fraud("other weights", f"{trajectory.id}: logprobs are {mean:.2g} nats apart a token", side)


def _logprobs(model: Any, trajectory: Trajectory, temperature: float) -> list[float]:
    """Of the sampled tokens, in one pass over the whole episode: nothing of how they were sampled is used."""
    import torch

    context: list[int] = []
    places: list[int] = []
    for turn in trajectory.turns:
        context += turn.added_token_ids
        places += range(len(context), len(context) + len(turn.completion.token_ids))
        context += turn.completion.token_ids
    if max(context) >= model.get_input_embeddings().num_embeddings or min(context) < 0:
        raise IndexError(max(context))
    with torch.inference_mode():
        ids = torch.tensor([context], device=next(model.parameters()).device)
        logits = model(input_ids=ids).logits[0, [place - 1 for place in places]].float()
        logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        return logprobs.gather(1, ids[0, places].unsqueeze(1)).squeeze(1).tolist()


def _replayed(
    opened: Opened, side: str, loaded: Any, count: int, drawn: random.Random, console: Console
) -> Iterator[Fraud]:
    """Play a sample of the episodes again, with the same seeds, on the cassette."""
    from mcpagent.train.build import open_sampler

    conditions = opened.certificate.conditions
    stored = {t.id: t for t in opened.episodes[side]}
    tasks = [task for task in opened.heldout if task.id not in opened.overlaps]
    every = [
        a
        for a in attempts(tasks, per_task=conditions.samples, seed=conditions.seed, label="evaluation")
        if a.episode_id in stored
    ]
    sample = (
        every if count >= len(every) else [every[i] for i in sorted(drawn.sample(range(len(every)), count))]
    )
    settings = AgentSettings(
        sampling=Sampling(max_new_tokens=conditions.max_new_tokens, temperature=conditions.temperature),
        limits=EpisodeLimits(
            max_turns=conditions.max_turns,
            max_tool_calls=conditions.max_tool_calls,
            message_limit_chars=conditions.message_limit_chars,
        ),
        max_context_tokens=conditions.max_context_tokens,
        discovery=Discovery(pinned=conditions.pinned, result_chars=conditions.result_limit_chars)
        if conditions.search
        else None,
    )
    config = load_train_config([], ["rollout.backend=hf"], for_training=False).config
    tape = Cassette.alone(opened.folder / "cassette", result_limit_chars=conditions.result_limit_chars)
    with (
        tape,
        IOThread() as io,
        open_sampler(loaded, config, model=loaded.model, slots=len(sample)) as sampler,
        episode_progress(console, f"replay of {side}", total=len(sample)) as on_done,
    ):
        again = io.run(
            collect(
                sample,
                policy=sampler.policy,
                tools=tape,
                settings=settings,
                renderer=loaded.renderer,
                concurrency=len(sample),
                on_done=on_done,
            )
        )
    differing = [t.id for t in again if _tokens(t) != _tokens(stored[t.id])]
    is_exact = opened.certificate.sides[side].dtype == "float32" and loaded.device.type == "cpu"
    # Elsewhere another number of rows moves logits enough to change a token now and then.
    if len(differing) > (0 if is_exact else len(sample) / 4):
        yield Fraud("not replayed", f"{differing[0]} and {len(differing) - 1} more of {len(sample)}", side)


def _tokens(trajectory: Trajectory) -> list[tuple[int, ...]]:
    return [tuple(turn.completion.token_ids) for turn in trajectory.turns]
