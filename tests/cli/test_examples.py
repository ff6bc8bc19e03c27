"""Every example of README, docs and help texts runs as it stands, or the table below says why not here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mcpagent.cli.main import load_app
from mcpagent.config.loader import load_train_config
from mcpagent.core.tasks import StateCheck
from mcpagent.env.parsing import parse_action
from mcpagent.synth.templates.template import load_templates
from mcpagent.tools.servers_config import load_servers
from tests.cli.specs import spec_of
from tests.house import ROOT
from tests.test_docs import PAGES, _leaves

HERE = Path(__file__).parent

# In this process, in this order, in one folder whose data are the samples. What a command's --out names is
# removed before it, since two examples may write the same.
FAST = (
    "mcpagent data samples",
    "mcpagent data samples data/samples",
    "mcpagent data show data/samples/train.jsonl",
    "mcpagent data validate data/processed/train.jsonl",
    "mcpagent data validate data/processed/train.jsonl --execute --out good.jsonl",
    "mcpagent data validate train.jsonl --execute --out good.jsonl",
    "mcpagent data stats data/processed/train.jsonl",
    "mcpagent data stats data/processed/train.jsonl --json",
    "mcpagent data dedupe tasks.jsonl --out distinct.jsonl",
    "mcpagent data restate train.jsonl --out restated.jsonl",
    "mcpagent data split distinct.jsonl --out data/mine --heldout 0.2 --validation 0.1",
    "mcpagent tools list --servers mcp.json",
    'mcpagent tools call tavily.tavily_search \'{"query": "QTPH price target"}\'',
    'mcpagent tools call time.get_current_time \'{"timezone": "UTC"}\' --servers mcp.json',
    'mcpagent tools call time.get_current_time \'{"timezone": "UTC"}\' --servers mcp.json --timeout 5',
    "mcpagent convert dependent_spec.json --servers mcp.json --out data/processed/train.jsonl",
    "mcpagent convert dependent_spec.json --servers mcp.json --execute --out data/processed/train.jsonl",
    "mcpagent gen-data --servers mcp.json --templates my_templates --out data/mine",
    "mcpagent gen-data --explore --servers mcp.json --train 24 --validation 4 --heldout 6 --out data/mine",
    "mcpagent data show data/mine/train.jsonl",
    "mcpagent rollout --policy gold --data data/samples/train.jsonl --out gold.jsonl.zst",
)

# Each as a process, in this order, in one folder, whose data are of the user's servers once they are made.
SLOW = (
    "mcpagent data samples",
    "mcpagent env check --data data/samples",
    "mcpagent env check --servers mcp.json",
    'mcpagent tools bench time.get_current_time \'{"timezone": "UTC"}\' --servers mcp.json',
    "mcpagent tools bench polygon.polygon_get_market_status --calls 2000 --concurrency 32",
    "mcpagent gen-data --explore --servers mcp.json --train 200 --validation 20 --heldout 60 --out data/mine",
    "mcpagent gen-data --explore --servers mcp.json --train 24 --validation 4 --heldout 6 --out data/mine",
    "mcpagent doctor --servers mcp.json",
    "mcpagent doctor --servers mcp.json --json",
    "mcpagent env check --data data/mine",
    "mcpagent train --algo sft --config configs/warm_start.yaml --data data/mine --out outputs/warm"
    " --set training.max_steps=20 --set sft.curriculum_steps=5",
    "mcpagent train --dry-run --config configs/quickstart.yaml --model outputs/warm --data data/mine"
    " --out outputs/mine",
    "mcpagent train --config configs/quickstart.yaml --model outputs/warm --data data/mine"
    " --out outputs/mine --set training.max_steps=6 --set training.save_frequency=1",
    "mcpagent train --resume --out outputs/mine",
    "mcpagent runs",
    "mcpagent runs outputs",
    "mcpagent eval checkpoint outputs/warm --data data/mine --out before.json",
    "mcpagent eval checkpoint outputs/mine --data data/mine --out after.json",
    "mcpagent eval checkpoint outputs/warm --data data/mine --out before.json"
    " --set tools.cassette=tapes/mine",
    "mcpagent eval checkpoint outputs/mine --data data/mine --out after.json --set tools.cassette=tapes/mine",
    "mcpagent eval compare before.json after.json",
    "mcpagent eval regrade after.json --out again.json",
    "mcpagent report outputs/mine",
    "mcpagent export outputs/mine --merge --out model",
    "mcpagent rollout --policy gold --out outputs/gold.jsonl.zst --servers mcp.json"
    " --set tools.cassette=tapes/shop --set tools.cassette_mode=record",
    "mcpagent rollout --policy gold --out outputs/again.jsonl.zst --set tools.cassette=tapes/shop"
    " --set tools.cassette_mode=strict",
    "mcpagent eval checkpoint outputs/mine --servers mcp.json --set tools.cassette=tapes/shop",
    "mcpagent eval checkpoint outputs/mine --data data/processed/heldout.jsonl --samples 4 --json",
    "mcpagent gen-data --train 800 --heldout 240 --seed 1 --out data/processed",
    "mcpagent gen-data --train 800 --validation 100 --heldout 240 --seed 0",
    "mcpagent env check --data data/processed/train.jsonl",
    "mcpagent env check --data data/processed/validation.jsonl",
    "mcpagent env check --data data/processed/validation.jsonl --set tools.discovery=search",
    "mcpagent data split tasks.jsonl --out data/processed --heldout 0.2",
    "mcpagent gen-data --servers mcp.json --read-only sqlite.list_tables,sqlite.describe_table",
    "mcpagent gen-data --servers mcp.json --read-only sqlite --seed-value table=ships",
    "mcpagent gen-data --servers mcp.json --read-only sqlite.list_tables,sqlite.read_query --out data/sqlite",
    "mcpagent smoke --backend hf",
    "mcpagent serve polygon",
    "mcpagent serve slack --limited",
)
_STAND_FOR = {"RUN": "outputs/mine"}  # words that a person replaces

GPU = "a GPU, or hours without one"
HUB = "a model from the hub"
KEY = "a key of somebody's service"
SERVICE = "a running API or server of models"
INSTALL = "installs or downloads packages"
CALCULATOR = "needs files of others; tests/examples/test_calculator.py has some of its own"
REAL = "an hour or more with a real pretrained model"
LONG = "minutes; tests/slow runs it, or what it runs"
EXT = "run by tests/test_extending.py, with the files that the page makes"
STAYS = "serves until it is stopped, on a fixed port or in a sandbox that not every machine has"
ELSEWHERE = {
    "mcpagent convert chats.jsonl --servers mcp.json --out data/mine": "tests/synth/chats/test_chats.py",
    "mcpagent convert chats.jsonl --servers mcp.json --model gpt-5-mini --set api.max_cost=2"
    " --out data/mine": KEY,
    "mcpagent convert chats.jsonl --servers mcp.json --model gpt-5-mini --set api.max_cost=2": KEY,
    "mcpagent convert chats.jsonl --servers mcp.json --model gpt-5-mini --batch round-1.jsonl": (
        "tests/synth/chats/test_chats.py"
    ),
    **dict.fromkeys(
        (
            "mcpagent eval checkpoint outputs/own/warm_start --data outputs/own/data --out before.json",
            "mcpagent eval checkpoint outputs/own --data outputs/own/data --out after.json",
            "mcpagent report outputs/own",
            "mcpagent export outputs/own --merge --out model",
        ),
        LONG,
    ),
    "mcpagent data export data/mine --out rows.jsonl": "tests/run/test_rows.py",
    "mcpagent data export outputs/mine --out rows.parquet": "tests/trl/test_rows.py",
    "mcpagent data export gold.jsonl.zst --data data/samples/train.jsonl"
    " --out rows.jsonl": "tests/run/test_rows.py",
    "mcpagent eval judge-check --data train.jsonl --set judge.model=gpt-5-mini --out judge-check.json": KEY,
    "inspect eval examples/bridges/inspect_eval.py -T data=data/mine -T split=heldout"
    " --model openai/gpt-5": "tests/bridges/test_inspect.py",
    "mcpagent data restate old.jsonl --out restated.jsonl": "tests/synth/datasets/test_restate.py",
    **dict.fromkeys(
        (
            "mcpagent gen-data --llm --servers mcp.json --batch round-1.jsonl",
            "mcpagent gen-data --llm --servers mcp.json --answers in-1.jsonl --batch round-2.jsonl",
            "mcpagent gen-data --llm --servers mcp.json --yes-read-only --batch round-1.jsonl"
            " --out data/mine",
            "mcpagent gen-data --llm --servers mcp.json --yes-read-only --answers in-1.jsonl"
            " --batch round-2.jsonl --out data/mine",
        ),
        "tests/synth/llm/test_batch.py",
    ),
    "mcpagent eval model Qwen/Qwen3-0.6B --data data/mine/heldout.jsonl --out none.json": HUB,
    "mcpagent eval model Qwen/Qwen3-0.6B --data data/mine/heldout.jsonl --shots 2 --out two.json": HUB,
    'PYTHONPATH="$PWD" vf-eval @ verifiers.toml -m MODEL': "tests/bridges/test_verifiers.py",
    "python examples/bridges/http_episode.py http://127.0.0.1:8000 heldout 0": "tests/bridges/test_ors.py",
    "mcpagent env serve --data data/samples --port 8000": "tests/bridges/test_ors.py",
    "mcpagent train --dry-run --num-processes 8 --gpu-memory 80 --model Qwen/Qwen3-8B --mode full"
    " --set training.parallel=fsdp": HUB,
    "pip install .": INSTALL,
    'pip install ".[local]"': INSTALL,
    "pip download --no-deps bfcl-eval==2026.3.23 -d wheel && python -m zipfile -e wheel/*.whl bfcl": INSTALL,
    "python -m examples.bfcl outputs/mine --package bfcl --out outputs/bfcl": INSTALL,
    "mcpagent tools login shop --servers mcp.json": "tests/tools/transports/test_oauth.py",
    "mcpagent tools logout shop --servers mcp.json": "tests/tools/transports/test_oauth.py",
    "mcpagent env check --servers mcp.json --set tools.per_server.files.workspace=data/files": (
        "tests/tools/test_workspace.py"
    ),
    "mcpagent quickstart --out outputs/quickstart --seed 1": LONG,
    "mcpagent quickstart --servers mcp.json": LONG,
    "mcpagent quickstart --servers mcp.json --read-only library.get_book": LONG,
    "mcpagent quickstart --servers mcp.json --heldout-server library": LONG,
    "mcpagent quickstart --model Qwen/Qwen2.5-0.5B-Instruct --servers mcp.json --minutes 60": HUB,
    "mcpagent quickstart --model Qwen/Qwen2.5-0.5B-Instruct --minutes 60": HUB,
    "mcpagent quickstart --model Qwen/Qwen2.5-Coder-0.5B-Instruct --servers mcp.json": HUB,
    "mcpagent quickstart --model NAME_OR_FOLDER --minutes 60": "tests/demo/test_pretrained.py",
    "mcpagent quickstart --model NAME_OR_FOLDER --servers mcp.json --controls": (
        "tests/demo/test_pretrained.py"
    ),
    "mcpagent chat outputs/NAME": "tests/cli/test_chat.py",
    'mcpagent chat outputs/NAME --once "What is the price of QLBH?" --json': "tests/cli/test_chat.py",
    "mcpagent chat outputs/own --servers mcp.json": "tests/cli/test_chat.py",
    'mcpagent chat outputs/own --once "Where is the Aurora moored?"': "tests/cli/test_chat.py",
    "mcpagent report outputs/quickstart": LONG,
    "mcpagent report outputs/quickstart --format inspect": "tests/bridges/test_inspect_log.py",
    "mcpagent view outputs/quickstart": "tests/evaluate/report/test_live.py",
    "mcpagent train --config configs/quickstart.yaml --set model.name=PATH --set seed=1": LONG,
    "make quickstart": LONG,
    "make bench": LONG,
    "make test": LONG,
    "make test ARGS=tests/cli/test_main.py": LONG,
    "make test ARGS='tests/test_house.py tests/test_docs.py'": LONG,
    "make lint": LONG,
    "make docs": INSTALL,
    "make install": INSTALL,
    "mcpagent gen-data --templates my_templates --train 4 --validation 1 --heldout 1 --out data/mine": EXT,
    "make quickstart ARGS='--seed 1 --out outputs/seed-1'": LONG,
    "python -m benchmarks.update": LONG,
    "python -m benchmarks.update --unique": LONG,
    "python -m benchmarks.beside_trl --tool-tokens 1024": LONG,
    (
        "python -m benchmarks.beside_trl --tool-tokens 4096 --prompts 1 --model FOLDER"
        " --pass-tokens 4400 --gradient-checkpointing"
    ): LONG,
    "python -m benchmarks.update --shape qwen3-0.6b --gradient-checkpointing": LONG,
    "make test-gpu": GPU,
    "python -m benchmarks.gpu --only attention --only update": GPU,
    "python -m benchmarks.gpu --device cpu --tiny": "tests/test_benchmarks.py",
    "python -m benchmarks.rollout w3 --tasks 4 --rounds 3 --beside-trl": LONG,
    (
        "python -m benchmarks.rollout w3 --tasks 4 --rounds 1 --alone --beside-trl --model FOLDER"
        " --dtype bfloat16 --micro-batch-tokens 1400"
    ): LONG,
    "python -m benchmarks.rollout generate": LONG,
    "python -m benchmarks.rollout latency": LONG,
    "mcpagent gen-data --templates full --train 8000 --validation 500 --heldout 1500 --out data/full": LONG,
    "mcpagent doctor --servers mcp.json --model Qwen/Qwen3-0.6B": HUB,
    "mcpagent doctor --model Qwen/Qwen3-0.6B": HUB,
    "mcpagent doctor --servers mcp.json --model Qwen/Qwen2.5-0.5B-Instruct": HUB,
    "mcpagent doctor --model MODEL --set rollout.tool_format=xml --servers mcp.json": HUB,
    "mcpagent train --dry-run --model Qwen/Qwen3-0.6B --data data/mine": HUB,
    "mcpagent train --dry-run --set data.train=data/processed/train.jsonl": HUB,
    "mcpagent eval model Qwen/Qwen3-0.6B --data data/processed/heldout.jsonl --out base.json": HUB,
    "mcpagent train --model Qwen/Qwen3-0.6B --data data/mine": GPU,
    "mcpagent train --set model.name=Qwen/Qwen3-0.6B"
    " --set data.train=outputs/quickstart/data/train.jsonl": GPU,
    "mcpagent train --config configs/model.yaml --config mine.yaml"
    " --set rollout.group_size=4 --set seed=1": GPU,
    "mcpagent train --set data.train=data/processed/train.jsonl --set name=first": GPU,
    "mcpagent train --algo ppo --set data.train=data/processed/train.jsonl": GPU,
    "mcpagent train --algo sft --mode lora --set data.train=data/processed/train.jsonl": GPU,
    "mcpagent train --set budget.cpu_s=3600 --set health.kl=5.0"
    " --set data.train=data/processed/train.jsonl": GPU,
    "mcpagent train --resume --set name=first --set data.train=data/processed/train.jsonl": GPU,
    "mcpagent export outputs/first --merge --out model": GPU,
    "mcpagent train --num-processes 2 --config FILE": GPU,
    "mcpagent smoke --backend vllm --model Qwen/Qwen3-0.6B": GPU,
    "VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 python -m"
    " vllm.entrypoints.openai.api_server --host 127.0.0.1 --model MODEL --logprobs-mode processed_logprobs"
    " --generation-config vllm --worker-extension-cls mcpagent.policy.vllm.worker.WeightLoading"
    " --enable-lora --max-lora-rank 16 --max-loras 2": GPU,
    "mcpagent train --set 'vllm.servers=[http://127.0.0.1:8000]'"
    " --set data.train=data/processed/train.jsonl": GPU,
    "OPENAI_API_KEY=... mcpagent gen-data --llm --n-samples 200 --set api.max_cost=5 --out data/llm": KEY,
    "mcpagent gen-data --llm --n-samples 200 --set api.max_cost=5 --out data/llm": KEY,
    "mcpagent gen-data --explore --servers mcp.json --yes-read-only --out data/mine": (
        "tests/synth/explore/test_unannotated.py"
    ),
    "mcpagent gen-data --explore --servers mcp.json --heldout-server library --out data/unseen": (
        "tests/synth/test_heldout_servers.py"
    ),
    "mcpagent eval checkpoint outputs/grpo@latest --data data/unseen --temperature 1 --seed 1": REAL,
    "mcpagent eval compare before/judged.json after/judged.json": INSTALL,
    (
        "mcpagent gen-data --explore --servers mcp.json --yes-read-only --heldout-server recipes "
        "--heldout-server observatory --train 200 --validation 48 --heldout 200 --seed 1 --out "
        "data/unseen"
    ): REAL,
    (
        "mcpagent train --algo sft --mode lora --model MODEL --data data/unseen --out outputs/sft "
        "--seed 1 --set rollout.tool_format=json --set model.dtype=bfloat16 --set training.max_steps=24 "
        "--set training.max_epochs=2 --set training.batch_size=8 --set optimization.learning_rate=2e-4 "
        "--set training.warmup_steps=0 --set training.save_frequency=8"
    ): REAL,
    (
        "mcpagent train --mode lora --model outputs/sft@8 --data data/unseen --out outputs/grpo --seed "
        "1 --set rollout.tool_format=json --set model.dtype=bfloat16 --set grpo.loss=dr_grpo --set "
        "training.max_steps=21 --set training.max_epochs=2 --set training.batch_size=4 --set "
        "rollout.group_size=8 --set optimization.learning_rate=5e-5 --set training.warmup_steps=2 --set "
        "rollout.max_new_tokens=128"
    ): REAL,
    "python -m benchmarks.gpu --only run": GPU,
    "python -m examples.bfcl MODEL --single-turn --max-tasks 50 --package bfcl --out before": INSTALL,
    "python -m examples.bfcl outputs/mine --single-turn --max-tasks 50 --package bfcl --out after": INSTALL,
    "python -m examples.calculator tasks calculator_train.csv basic_calculations_eval.csv --out"
    " data/calculator": CALCULATOR,
    "mcpagent data validate data/calculator/heldout.jsonl --execute --servers"
    " data/calculator/mcp.json": CALCULATOR,
    "mcpagent eval model MODEL --data data/calculator/heldout.jsonl --servers data/calculator/mcp.json"
    " --out before.json": CALCULATOR,
    "python -m examples.calculator judge before.jsonl.zst --data data/calculator/heldout.jsonl": CALCULATOR,
    "mcpagent gen-data --explore --servers mcp.json --config notes.yaml": (
        "tests/synth/explore/test_changes.py"
    ),
    "mcpagent eval model openai:gpt-5-mini --data data/samples/heldout.jsonl --out api.json": KEY,
    "mcpagent eval model openai:gpt-5-mini --data data/samples/heldout.jsonl --set api.price_in=0.25"
    " --set api.price_out=2": KEY,
    "mcpagent serve tavily --upstream live": KEY,
    "mcpagent serve slack --upstream live --allow-send random": KEY,
    "mcpagent rollout --policy gold --out outputs/gold.jsonl.zst --set tools.upstream=live"
    " --set tools.limited=false": KEY,
    "mcpagent gen-data --llm --set api.base_url=http://127.0.0.1:8000/v1 --model my-model"
    " --set api.max_requests=1000 --out data/llm": SERVICE,
    "mcpagent rollout --policy openai:my-model --set api.base_url=http://127.0.0.1:8000/v1"
    " --out api.jsonl.zst": SERVICE,
    "mcpagent serve slack --limited --transport http --port 8010": STAYS,
    "mcpagent serve python --sandbox bubblewrap": STAYS,
    "mcpagent data show train.jsonl --id quote-price-0123456789ab": "the id stands for any one",
    "mcpagent gen-data --explore --servers mcp.json --train 160 --validation 16 --heldout 120"
    " --out data/observatory": REAL,
    "mcpagent train --algo sft --mode lora --model MODEL --data data/observatory --out outputs/sft"
    " --set rollout.tool_format=json --set model.dtype=bfloat16 --set training.max_steps=26"
    " --set training.max_epochs=2 --set training.batch_size=8 --set optimization.learning_rate=2e-4": REAL,
    "mcpagent train --mode lora --model outputs/sft@10 --data data/observatory --out outputs/grpo"
    " --set rollout.tool_format=json --set model.dtype=bfloat16 --set rollout.max_new_tokens=96"
    " --set rollout.max_steps_per_episode=6 --set training.max_steps=45 --set training.max_epochs=2"
    " --set training.batch_size=4 --set optimization.learning_rate=1e-4": REAL,
    "mcpagent eval checkpoint outputs/grpo@latest --data data/observatory --temperature 1": REAL,
}


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """(page, text) of the code blocks in one of the languages."""
    fence = re.compile(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for page in PAGES:
        yield from ((page.relative_to(ROOT).as_posix(), text) for text in fence.findall(page.read_text()))


def examples() -> set[str]:
    """Each command of a shell block, and each example of a help text."""
    found = {
        " ".join(line.replace("#", " #").partition("  #")[0].split())
        for _, text in blocks("bash", "sh", "console")
        for line in text.replace("\\\n", " ").splitlines()
    }
    for _, command in _leaves():
        found |= set(re.findall(r"Example: ([^\n]+)", command.help))
    return found - {""}


def test_every_example_is_run_or_says_why_not_here() -> None:
    shown = examples()
    assert len(shown) > 90
    classes = [{*FAST}, {*SLOW}, {*ELSEWHERE}]
    assert shown - set.union(*classes) == set(), "new: run them in FAST or SLOW, or say why not in ELSEWHERE"
    assert set.union(*classes) - shown == set(), "no page and no help text shows these any more"
    assert not (classes[0] | classes[1]) & classes[2]


def furnish(place: Path) -> None:
    """What the examples suppose to be there: an mcp.json, and the files of a user."""
    servers = {"time": [], "files": [], "sqlite": [], "harbour": ["60"]}
    program = str(HERE / "small_servers.py")
    entries = {
        name: {"command": sys.executable, "args": [program, name, *more]} for name, more in servers.items()
    }
    (place / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    samples = ROOT / "data" / "samples"
    shutil.copytree(samples, place / "data" / "processed")
    for name in ("train", "tasks", "a", "distinct"):
        shutil.copy(samples / "train.jsonl", place / f"{name}.jsonl")
    (place / "dependent_spec.json").write_text(json.dumps(spec_of("harbour", "list_ships", {})))
    templates = place / "my_templates"
    templates.mkdir()
    (templates / "pools.yaml").write_text(
        yaml.safe_dump({"ship": {"values": [f"Aurora {c}" for c in "ABCDEFG"]}})
    )
    tons = {
        "name": "tons",
        "complexity": "simple",
        "prompts": [f"{words} {{ship}}?" for words in ("How heavy is the", "What is the weight of the")],
        "slots": {"ship": "ship"},
        "plan": [{"server": "harbour", "tool": "get_ship", "params": {"ship": "{ship}"}}],
        "answer": {"type": "number", "value": "${step1.tons}", "tolerance": 0.001},
        "reference_answer": "The answer is ${step1.tons}.",
    }
    (templates / "tons.yaml").write_text(yaml.safe_dump([tons]))


def cleared(line: str, place: Path) -> list[str]:
    """The words of the command, once what it is to write is not there any more."""
    words = [_STAND_FOR.get(word, word) for word in shlex.split(line)][1:]
    out = words[words.index("--out") + 1] if "--out" in words else None
    if words[0] == "gen-data":
        out = out or "data/processed"
    if words[:2] == ["data", "samples"]:
        out = "data/samples"
    if out is not None and "--resume" not in words:
        path = place / out
        for old in path.parent.glob(f"{path.stem}.*" if path.suffix else path.name):  # its episodes as well
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        if words[0] == "convert":  # what the folder remembers is of the tasks that were there
            path.with_name("servers.yaml").unlink(missing_ok=True)
    return words


def promised(words: list[str], place: Path, code: int, out: str, err: str) -> None:
    """It ended well, wrote what it was told to and said something."""
    assert code == 0, f"{words}\n{out[-2000:]}\n{err[-4000:]}"
    assert "Traceback" not in err
    if "--out" in words and "--dry-run" not in words:
        assert (place / words[words.index("--out") + 1]).exists()
    assert out.strip()
    if "--json" in words or words[:2] == ["tools", "call"]:
        answer = json.loads(out)
        assert answer
        if "tavily.tavily_search" in words:
            assert answer["results"], "the search finds something"


@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_cheap_examples_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in FAST:
        words = cleared(line, tmp_path)
        app = load_app(words[0])
        done = CliRunner().invoke(app, words[1:])
        assert done.exception is None, f"{line}\n{done.exception!r}\n{done.output[-3000:]}"
        promised(words, tmp_path, done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("examples")
    furnish(place)
    return place


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("line", SLOW)
def test_an_example_runs_after_those_before_it(line: str, shared: Path) -> None:
    words = cleared(line, shared)
    hello = "\n".join(
        json.dumps({"jsonrpc": "2.0", **message})
        for message in (
            {
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "example", "version": "1"},
                },
            },
            {"method": "notifications/initialized"},
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "mcpagent.cli.main", *words],
        cwd=shared,
        input=f"{hello}\n" if words[0] == "serve" else None,
        capture_output=True,
        text=True,
    )
    promised(words, shared, done.returncode, done.stdout, done.stderr)
    if words[0] == "serve":
        assert "serverInfo" in json.loads(done.stdout.splitlines()[0])["result"]
    if words[:2] == ["gen-data", "--explore"] and "24" in words:  # a user's data where no --data is given
        shutil.rmtree(shared / "data" / "processed")
        shutil.copytree(shared / "data" / "mine", shared / "data" / "processed")
        for name in ("tasks", "a"):
            shutil.copy(shared / "data" / "mine" / "train.jsonl", shared / f"{name}.jsonl")


def a_task(text: str, folder: Path) -> None:
    (folder / "tasks.jsonl").write_text(json.dumps(json.loads(text)) + "\n")
    app = load_app("rollout")
    words = [
        "--policy",
        "gold",
        "--data",
        str(folder / "tasks.jsonl"),
        "--out",
        str(folder / "o.jsonl"),
        "--json",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    metrics = json.loads(done.stdout)["metrics"]
    assert (metrics["task_success"]["value"], metrics["mean_reward"]["value"]) == (1.0, 1.0)


def a_servers_file(text: str, folder: Path) -> None:
    (folder / "mcp.json").write_text(text)
    assert len(load_servers(folder / "mcp.json").servers) == len(json.loads(text)["mcpServers"])


def a_state(text: str, folder: Path) -> None:
    for checks in json.loads(text)["state"].values():
        assert [StateCheck.model_validate(check) for check in checks]


def a_template(text: str, folder: Path) -> None:
    (folder / "pools.yaml").write_text("channel: {values: [C101, C104]}\n")
    (folder / "mine.yaml").write_text(text)
    assert len(load_templates(folder).templates) == 1


def a_template_set(text: str, folder: Path) -> None:
    pages = [block for page, block in blocks("ya?ml") if page == "docs/extending.md"]
    for block in pages:
        (folder / Path(block.splitlines()[0].removeprefix("# ")).name).write_text(block)
    assert text in pages and len(load_templates(folder).templates) == 1


def a_configuration(text: str, folder: Path) -> None:
    (folder / "mine.yaml").write_text(text)
    sections = load_train_config([folder / "mine.yaml"], []).config
    assert sections.tools.per_server or sections.rollout.user_model


_RECORDS: dict[tuple[str, str], Callable[[str, Path], Any]] = {
    ("docs/data.md", '{"data_source"'): a_task,
    ("docs/configuration.md", '{"mcpServers"'): a_servers_file,
    ("docs/tools.md", '{"mcpServers"'): a_servers_file,
    ("docs/data.md", '{"state"'): a_state,
    ("docs/data.md", "- name: channel-price"): a_template,
    ("docs/tools.md", "tools:"): a_configuration,
    ("docs/environment.md", "rollout:"): a_configuration,
    ("docs/extending.md", "# my_templates/"): a_template_set,
}


@pytest.mark.system
@pytest.mark.parametrize(("page", "text"), [*blocks("json", "ya?ml")], ids=lambda value: str(value)[:24])
def test_a_record_that_is_shown_is_what_it_is_shown_as(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "t0ken-of-the-shop")
    monkeypatch.setenv("MY_TOKEN", "t0ken-of-mine")
    (check,) = [check for (on, start), check in _RECORDS.items() if on == page and text.startswith(start)]
    check(text, tmp_path)


@pytest.mark.system
def test_the_three_ways_to_write_a_call_say_the_same_and_find_the_price() -> None:
    (text,) = [
        text for page, text in blocks("text") if page == "docs/environment.md" and "fmp_get_quote" in text
    ]
    calls = [parse_action(line).calls for line in text.splitlines()]
    assert len(calls) == 3
    arguments = [dict(call.arguments) for (call,) in calls]
    assert arguments[0] == arguments[1] == arguments[2]
    app = load_app("tools")
    done = CliRunner().invoke(app, ["call", "fmp.fmp_get_quote", json.dumps(arguments[0])])
    assert done.exit_code == 0 and json.loads(done.stdout)["price"] > 0
