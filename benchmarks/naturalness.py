"""How far explored questions are from those of people: python -m benchmarks.naturalness --human FOLDER.

FOLDER holds the questions of BFCL, as the package ships them (docs/data.md, Benchmarks). The questions of
another revision (--before) are made by its own code, from a copy, on the same servers. --servers
NAME=mcp.json adds servers; --samples FILE writes thirty random questions of each. The classifiers are tested
on questions that they were not trained on (5 folds); an AUC of 0.5 is a coin. "Masked": every word that is no
function word is replaced by x, so that what things are called tells nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.naming import lexicon
from mcpagent.synth.explore.naturalness import overlap
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import builtin_servers

_ROOT = Path(__file__).parents[1]
_BEFORE = "5556296"  # the last revision that worded questions from descriptions
_COUNT = 200  # questions of each server
_SHOWN = 30
_FOLDS = 5
_LONGEST = 300  # characters of a person's question
_FEATURES = 1 << 13
_ALIKE = 0.8  # Jaccard similarity of 5-character shingles from which questions are near-duplicates
_HUMAN = ("BFCL_v4_live_simple.json", "BFCL_v4_live_multiple.json")
Floats = npt.NDArray[np.float64]


def _values(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [text for item in parts for text in _values(item)]
    return [] if "${" in str(value) else [str(value).rpartition(" FROM ")[2]]


def drawn(servers: Sequence[str], count: int, tree: Path) -> list[dict[str, Any]]:
    """The questions that the code in `tree` makes, with the values that they name."""
    with tempfile.TemporaryDirectory() as folder:
        counts = (
            "--train",
            str(count),
            "--validation",
            "0",
            "--heldout",
            "0",
            "--seed",
            "7",
            "--out",
            folder,
        )
        _mcpagent("gen-data", "--explore", *servers, *counts, tree=tree)
        lines = (Path(folder) / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = []
    for line in lines:
        task = json.loads(line)
        truth, info = task["reward_spec"]["ground_truth"], task["extra_info"]
        calls = [*truth.get("tool_sequence", ()), *info.get("would_call", ())]
        rows.append(
            {
                "text": " ".join([task["prompt"][-1]["content"], *truth.get("user_turns", ())]),
                "values": _values([call.get("params", {}) for call in calls]),
                "shape": info.get("shape", info["class"]),
            }
        )
    return rows


def _mcpagent(*arguments: str, tree: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "mcpagent", *arguments, "--json"]
    return subprocess.run(
        command, env=environment, cwd=tree, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def human(folder: Path, count: int) -> list[str]:
    """Questions that users of a public function-calling service typed, one line each."""
    texts: list[str] = []
    for name in _HUMAN:
        for path in sorted(folder.rglob(name)):
            if "possible_answer" in path.parts:
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                first = [m["content"] for m in json.loads(line)["question"][0] if m["role"] == "user"]
                if (
                    first
                    and len(first[0]) <= _LONGEST
                    and "\n" not in first[0].strip()
                    and first[0].isascii()
                ):
                    texts.append(first[0].strip())
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < count:
        raise SystemExit(
            f"{folder} holds {len(distinct)} questions of {', '.join(_HUMAN)}; {count} are needed"
        )
    return random.Random(0).sample(distinct, count)


def _specs(servers: Sequence[str]) -> list[ToolSpec]:
    if servers:
        listed = _mcpagent("tools", "list", "--servers", servers[1], tree=_ROOT)
        return [ToolSpec.model_validate(spec) for spec in json.loads(listed)]

    async def builtin() -> list[ToolSpec]:
        async with ToolPool(builtin_servers(limited=False)) as pool:
            return list(pool.tools.values())

    return asyncio.run(builtin())


# What is measured


def measures(rows: Sequence[dict[str, Any]], specs: Sequence[ToolSpec]) -> dict[str, float]:
    """Shares over the questions of one server."""
    shared = [overlap(row["text"], specs, entities=row["values"]) for row in rows]
    return {
        "words in descriptions": float(np.mean([each.share for each in shared])),
        "repeats 5 words of one": float(np.mean([len(each.copied) >= 5 for each in shared])),
        "step-order words": float(np.mean([bool(each.order) for each in shared])),
        "near-duplicates": near_duplicates([row["text"] for row in rows]),
    }


def near_duplicates(texts: Sequence[str]) -> float:
    """The share of texts that are much like an earlier one."""
    seen: list[set[str]] = []
    alike = 0
    for text in texts:
        plain = " ".join(text.casefold().split())
        pieces = {plain[i : i + 5] for i in range(max(1, len(plain) - 4))}
        alike += any(len(pieces & other) / len(pieces | other) > _ALIKE for other in seen)
        seen.append(pieces)
    return alike / len(texts)


def masked(text: str) -> str:
    """The text with x for every word that is no function word."""
    plain = lexicon("stop")
    return re.sub(r"[^\W_][\w'-]*", lambda m: m[0] if m[0].lower() in plain else "x", text)


def ngrams(texts: Sequence[str], *, of_words: bool) -> Floats:
    """Rows of unit length: hashed character 1- to 4-grams, or words and pairs of them."""
    rows = np.zeros((len(texts), _FEATURES))
    for number, text in enumerate(texts):
        parts = text.casefold().split() if of_words else list(f" {text} ")
        longest = 2 if of_words else 4
        for size in range(1, longest + 1):
            for start in range(len(parts) - size + 1):
                gram = "\x00".join(parts[start : start + size])
                rows[number, zlib.crc32(gram.encode()) % _FEATURES] += 1
        rows[number] = np.log1p(rows[number])
        rows[number] /= np.linalg.norm(rows[number]) or 1.0
    return rows


def logistic(train: Floats, labels: Floats, test: Floats) -> Floats:
    """Scores of a logistic regression with a small ridge, by gradient descent with momentum."""
    weights, velocity, bias = np.zeros(train.shape[1]), np.zeros(train.shape[1]), 0.0
    for _ in range(150):
        error = 1 / (1 + np.exp(-(train @ weights + bias))) - labels
        velocity = 0.9 * velocity + train.T @ error / len(labels) + 1e-5 * weights
        weights -= 4.0 * velocity
        bias -= 4.0 * float(error.mean())
    return test @ weights + bias


def small_model(train: Floats, labels: Floats, test: Floats) -> Floats:
    """Scores of a network with one hidden layer."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(train.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-5)
    inputs, targets = torch.tensor(train, dtype=torch.float32), torch.tensor(labels, dtype=torch.float32)
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(inputs)[:, 0], targets)
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return net(torch.tensor(test, dtype=torch.float32))[:, 0].numpy().astype(np.float64)


def area(scores: Floats, labels: Floats) -> float:
    """Area under the ROC curve: how often a generated question scores above a human one."""
    ours, theirs = scores[labels == 1], scores[labels == 0]
    above = (ours[:, None] > theirs[None, :]).mean()
    return float(above + 0.5 * (ours[:, None] == theirs[None, :]).mean())


def told_apart(
    ours: Sequence[str],
    theirs: Sequence[str],
    *,
    of_words: bool,
    fit: Callable[[Floats, Floats, Floats], Floats],
) -> float:
    """The area on questions that were held out, over the folds."""
    rows = ngrams([*ours, *theirs], of_words=of_words)
    labels = np.array([1.0] * len(ours) + [0.0] * len(theirs))
    order = np.random.default_rng(0).permutation(len(labels))
    scores = np.zeros(len(labels))
    for fold in range(_FOLDS):
        test, train = order[fold::_FOLDS], np.setdiff1d(order, order[fold::_FOLDS])
        held = fit(rows[train], labels[train], rows[test])
        scores[test] = (held - held.mean()) / (held.std() or 1.0)
    return area(scores, labels)


def column(
    by_server: dict[str, list[dict[str, Any]]], specs: dict[str, list[ToolSpec]], people: Sequence[str]
) -> dict[str, float]:
    """All measures of one revision: the shares are means over servers, the classifiers see all of them."""
    per_server = [measures(rows, specs[name]) for name, rows in by_server.items()]
    shares = {name: float(np.mean([each[name] for each in per_server])) for name in per_server[0]}
    texts = [row["text"] for rows in by_server.values() for row in rows]
    texts = random.Random(1).sample(texts, min(len(texts), len(people)))
    theirs = list(people)[: len(texts)]
    hidden = [[masked(text) for text in side] for side in (texts, theirs)]
    words = float(np.mean([len(text.split()) for text in texts]))
    return {
        **shares,
        "words a question": words,
        "characters, AUC": told_apart(texts, theirs, of_words=False, fit=logistic),
        "characters, masked, AUC": told_apart(*hidden, of_words=False, fit=logistic),
        "small model, AUC": told_apart(texts, theirs, of_words=True, fit=small_model),
        "small model, masked, AUC": told_apart(*hidden, of_words=True, fit=small_model),
    }


def _samples(by_server: dict[str, list[dict[str, Any]]], command: str) -> str:
    lines = [
        "# Explored questions, unedited",
        "",
        f"Thirty random questions of each server, with their shape, written by `{command}`.",
        "A message that follows another of the user stands behind ` / `.",
    ]
    for name, rows in by_server.items():
        lines += ["", f"## {name}", ""]
        picked = random.Random(2).sample(rows, min(_SHOWN, len(rows)))
        lines += [f"{n}. {row['text']} *({row['shape']})*" for n, row in enumerate(picked, 1)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--human", type=Path, help="the unpacked package bfcl-eval")
    parser.add_argument("--servers", action="append", default=[], metavar="NAME=mcp.json")
    parser.add_argument("--read-only", action="append", default=[], metavar="SERVER.TOOL")
    parser.add_argument("--before", default=_BEFORE, help="the revision to compare with")
    parser.add_argument("--count", type=int, default=_COUNT, help="questions of each server")
    parser.add_argument("--samples", type=Path, help="write thirty questions of each server to this file")
    options = parser.parse_args()
    named = {"builtin": "", **dict(text.split("=", 1) for text in options.servers)}
    servers: dict[str, list[str]] = {}
    for name, path in named.items():
        reads = ",".join(tool for tool in options.read_only if tool.startswith(f"{name}."))
        servers[name] = ["--servers", str(Path(path).resolve())] if path else []
        servers[name] += ["--read-only", reads] if reads else []
    now = {name: drawn(arguments, options.count, _ROOT) for name, arguments in servers.items()}
    if options.samples:
        words = [re.sub(r"(^|=)/\S*/", r"\1", argument) for argument in sys.argv[1:]]
        options.samples.write_text(_samples(now, f"python -m benchmarks.naturalness {' '.join(words)}"))
    if options.human is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", options.before], cwd=_ROOT, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        was = {name: drawn(arguments, options.count, Path(folder)) for name, arguments in servers.items()}
    people = human(options.human, options.count * len(servers))
    specs = {name: _specs(arguments) for name, arguments in servers.items()}
    before, after = column(was, specs, people), column(now, specs, people)
    print("questions before and after: " + ", ".join(f"{n} {len(was[n])} and {len(now[n])}" for n in servers))
    print("| measure | before | after |\n|---|---:|---:|")
    for name, value in after.items():
        form = ".2f" if "AUC" in name else ".1f" if name.startswith("words a") else ".1%"
        print(f"| {name} | {before[name]:{form}} | {value:{form}} |")


if __name__ == "__main__":
    main()
