"""The probe of a checkpoint: a few token sequences with the trainer's logprobs, scored by whoever opens it.

Adapters on another base, half a copy, a file of another run: each loads without a word and gives other
logprobs. So whatever opens a checkpoint computes those of the probe, and refuses it if they are not the
trainer's. A sequence is a handful of tokens, so that all of them are one small batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import find_model, run_of

# Nats a token, mean absolute difference. Two correct engines differ by 1e-6 in float32 and 9e-3 in bfloat16
# (measured); wrong weights make 0.1 to 3 of it.
TOLERANCE = {"float32": 3e-4, "float16": 0.02, "bfloat16": 0.05}
PROBE_FILE = "probe.json"
PROBE_ROWS, PROBE_TOKENS = 64, 8  # sequences, and tokens of each
_ROWS_AT_ONCE = 16  # whose logits over the vocabulary are held together


@dataclass(frozen=True, kw_only=True)
class Probe:
    """`logprobs` are the trainer's (nats) of each sequence's tokens after the first, at temperature 1. It
    computed in `dtype`, over weights of 4 bits if `is_quantised`. In `tool_format` the sequences call tools;
    None if it is not recorded."""

    token_ids: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]
    dtype: str
    is_quantised: bool = False
    tool_format: str | None = None


def windows(sequences: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
    """Cut the probe's sequences out of longer ones, each given with the index from which on a model wrote it:
    `PROBE_ROWS` at most, spread evenly over what there is."""
    cut = [
        list(ids[i : i + PROBE_TOKENS])
        for ids, begin in sequences
        for i in range(max(0, min(begin, len(ids)) - 1), len(ids) - 1, PROBE_TOKENS)
    ]
    count = min(PROBE_ROWS, len(cut))
    return [cut[len(cut) * i // count] for i in range(count)]


def write_probe(folder: Path, probe: Probe) -> None:
    """Write the probe into a folder of weights."""
    document = {"schema_version": 1, **asdict(probe)}
    document["logprobs"] = [[round(value, 7) for value in row] for row in probe.logprobs]
    (folder / PROBE_FILE).write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


def read_probe(folder: Path) -> Probe | None:
    """Return the probe of a folder of weights; None if it has none. Raises UserError if it is not
    readable."""
    path = folder / PROBE_FILE
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        del document["schema_version"]
        probe = Probe(**document)
        lengths = [(len(ids), len(row) + 1) for ids, row in zip(probe.token_ids, probe.logprobs, strict=True)]
        if not lengths or any(ids != row for ids, row in lengths) or probe.dtype not in TOLERANCE:
            raise ValueError
        return probe
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError("is not a probe", where=str(path), remedy="copy the folder again") from None


def trained_format(name: str) -> str | None:
    """Return the format that a run, a checkpoint or an export was trained to call tools in; None if `name` is
    a model that no run made."""
    with suppress(UserError):  # whoever loads it says what is wrong with it
        checkpoint = find_model(name)
        probe = None if checkpoint is None else read_probe(checkpoint.path)
        if probe is not None and probe.tool_format is not None:
            return probe.tool_format
        if checkpoint is not None and (run := run_of(checkpoint.path)) is not None:
            return run.settings.get("rollout", {}).get("tool_format")
    return None


def prove(model: Any, folder: Path) -> None:
    """Score the probe in `folder` with the `model` that was loaded from it; without a probe there is nothing
    to do. Raises UserError with the difference if the logprobs are not the trainer's."""
    probe = read_probe(folder)
    if probe is None or probe.is_quantised != bool(getattr(model, "is_loaded_in_4bit", False)):
        return  # what 4 bits change of a model is more than any tolerance tells from other weights
    vocabulary = model.config.get_text_config().vocab_size
    if max(map(max, probe.token_ids)) >= vocabulary:
        raise _other(folder, f"its probe has tokens that a vocabulary of {vocabulary} does not")
    compare(
        probe, score(model, probe.token_ids), folder=folder, dtype=str(model.dtype).removeprefix("torch.")
    )


def compare(probe: Probe, logprobs: Sequence[Sequence[float]], *, folder: Path, dtype: str) -> None:
    """Raise UserError if the `logprobs`, computed in `dtype`, are not those of the probe."""
    apart = [
        abs(a - b)
        for ours, theirs in zip(logprobs, probe.logprobs, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    ]
    mean = sum(apart) / len(apart)
    limit = max(TOLERANCE[probe.dtype], TOLERANCE.get(dtype, 0.0))
    if not mean <= limit:  # not `>`: a difference that is not a number must not pass
        raise _other(
            folder,
            f"over the {len(apart)} tokens of its probe the logprobs are {mean:.3g} nats a token from the "
            f"trainer's (at most {max(apart):.3g}); {dtype} explains {limit:.2g}",
        )


def _other(folder: Path, why: str) -> UserError:
    return UserError(
        f"what was loaded is not the model that was trained: {why}",
        where=str(folder),
        remedy="its weights, its adapters or their base are those of another model: copy the whole run "
        "again, or name another checkpoint",
    )


def score(model: Any, token_ids: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the logprobs (nats) of each sequence's tokens after the first, by a plain forward pass."""
    import torch

    from mcpagent.models.adapters import evaluation_mode

    scored: list[list[float]] = []
    with torch.no_grad(), evaluation_mode(model):
        for first in range(0, len(token_ids), _ROWS_AT_ONCE):
            rows = token_ids[first : first + _ROWS_AT_ONCE]
            width = max(map(len, rows))
            # Padding comes last, if no token of a causal model sees it.
            ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            logprobs = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
            of_tokens = logprobs.gather(-1, ids[:, 1:, None])[..., 0].tolist()
            scored += [values[: len(row) - 1] for values, row in zip(of_tokens, rows, strict=True)]
    return scored
