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
    "mcpagent data split distinct.jsonl --out data/mine --heldout 0.2 --validation 0.1",
    "mcpagent tools list --servers mcp.json",
    'mcpagent tools call tavily.tavily_search \'{"query": "QTPH price target"}\'',
    'mcpagent tools call time.get_current_time \'{"timezone": "UTC"}\' --servers mcp.json',
    "mcpagent tools call files.write_file @arguments.json --servers mcp.json --timeout 5",
    "mcpagent convert dependent_spec.json --servers mcp.json --out data/processed/train.jsonl",
    "mcpagent convert dependent_spec.json --servers mcp.json --execute --out data/processed/train.jsonl",
    "mcpagent gen-data --servers mcp.json --templates my_templates --out data/mine",
    "mcpagent gen-data --explore --servers mcp.json --train 24 --validation 4 --heldout 6 --out data/mine",
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
    "mcpagent certify outputs/mine --out certificate",
    "mcpagent certify --check certificate --replay 8",
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
REAL = "an hour or more with a real pretrained model"
LONG = "minutes; CI or tests/slow runs it, or what it runs"
STAYS = "serves until it is stopped, on a fixed port or in a sandbox that not every machine has"
# What an example needs that is not here, by the words that say so; or the test that runs it.
ELSEWHERE = {
    "Qwen/": HUB,
    "mcpagent doctor --model MODEL": HUB,
    "--set data.train=data/processed/train.jsonl": GPU,  # trains the model of configs/model.yaml
    "mcpagent export outputs/first": GPU,
    "--config configs/model.yaml": GPU,
    "--num-processes 2": GPU,
    "vllm.entrypoints": GPU,
    "data/observatory": REAL,
    "mcpagent quickstart": LONG,
    "outputs/quickstart": LONG,
    "--set model.name=PATH": LONG,
    "--templates full": LONG,
    "make ": LONG,
    "python -m benchmarks.": LONG,
    "pip ": INSTALL,
    "--package bfcl": INSTALL,
    "judge.model=gpt-5-mini": KEY,
    "openai:gpt-5-mini": KEY,
    "mcpagent gen-data --llm": KEY,
    "--rewrite": KEY,
    "--upstream live": KEY,
    "tools.upstream=live": KEY,
    "--policy openai:my-model": SERVICE,
    "--transport http": STAYS,
    "--sandbox bubblewrap": STAYS,
    "--id quote-price-0123456789ab": "the id stands for any one",
    "inspect eval": "tests/bridges/test_inspect.py",
    "vf-eval": "tests/bridges/test_verifiers.py",
    "python examples/bridges/http_episode.py": "tests/bridges/test_ors.py",
    "mcpagent env serve": "tests/bridges/test_ors.py",
    "mcpagent chat": "tests/cli/test_chat.py",
    "--shard": "tests/synth/test_shards.py",
    "--yes-read-only": "tests/synth/explore/test_unannotated.py",
    "--config notes.yaml": "tests/synth/explore/test_changes.py",
    "--templates my_templates --train 4": "tests/test_extending.py, with the files that the page makes",
    "mcpagent tools login": "tests/tools/transports/test_oauth.py",
    "mcpagent tools logout": "tests/tools/transports/test_oauth.py",
    "tools.per_server.files.workspace": "tests/tools/test_workspace.py",
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
    run = {*FAST, *SLOW}
    assert run - shown == set(), "no page and no help text shows these any more"
    others = {line: [words for words in ELSEWHERE if words in line] for line in shown - run}
    unexplained = [line for line, reasons in others.items() if not reasons]
    assert unexplained == [], "new: run them in FAST or SLOW, or say why not in ELSEWHERE"
    used = {words for reasons in others.values() for words in reasons}
    assert ELSEWHERE.keys() - used == set(), "no example has these words any more"


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
    (place / "arguments.json").write_text(json.dumps({"path": str(place / "note.txt"), "text": "hello"}))
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
    ("README.md", '{"data_source"'): a_task,
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
