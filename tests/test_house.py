"""The rules that hold for the whole package: layers, cycles, the weight of --help, its size, what ships."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import jinja2
import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mcpagent.cli.main import COMMANDS
from mcpagent.config.loader import load_train_config
from mcpagent.llm.budget import load_prices
from mcpagent.synth.chats.answer import prompts as chat_prompts
from mcpagent.synth.llm.prompts import load_prompts
from mcpagent.synth.templates.template import load_templates
from tests.cli.base_environment import build_wheel
from tests.house import PACKAGE, ROOT, foreign_imports, imports, modules, nodes, own_imports

LAYERS = {
    **dict.fromkeys(("", "errors", "interrupts", "core", "parts"), 0),  # "" is mcpagent itself: its version
    **dict.fromkeys(("config", "storage", "console"), 1),
    **dict.fromkeys(("llm", "models"), 2),
    **dict.fromkeys(("tools", "reward", "policy"), 3),
    "env": 4,
    "rollout": 5,
    **dict.fromkeys(("servers", "synth", "evaluate"), 6),
    **dict.fromkeys(("judge", "train"), 7),
    "run": 8,
    **dict.fromkeys(("checks", "demo", "engines", "bridges"), 9),
    "types": 10,  # the page of words: lends from everywhere below, and is imported by people
    "cli": 11,
    "__main__": 12,
}
HEAVY = {"torch", "transformers", "vllm", "mcp", "pydantic"}


def _folder(module: str) -> str:
    return [*module.split("."), ""][1]


def _shipped(folder: str) -> list[Path]:
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert files, f"{folder}/ is empty"
    return files


def test_every_import_goes_down_or_stays_in_its_folder() -> None:
    assert {_folder(name) for name in modules()} <= LAYERS.keys()
    upward = [
        f"{module} -> {target}"
        for module, path in modules().items()
        for target in sorted(own_imports(path))
        if _folder(target) != _folder(module) and LAYERS[_folder(target)] >= LAYERS[_folder(module)]
    ]
    assert upward == []


def test_the_package_takes_nothing_but_its_version_from_its_own_api() -> None:
    """`mcpagent/__init__` hands out names of all layers: an import through it would be one that none sees."""
    through = [
        f"{module} -> {name}"
        for module, path in modules().items()
        for name in sorted(imports(path))
        if re.fullmatch(r"mcpagent\.\w+", name) and name not in {*modules(), "mcpagent.__version__"}
    ]
    assert through == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: own_imports(path) - {module} for module, path in modules().items()}
    assert len(graph) > 50
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle
    benchmarks = {f"benchmarks.{path.stem}": path for path in (ROOT / "benchmarks").glob("*.py")}
    graph = {
        name: {each for each in benchmarks if any(f"{i}.".startswith(f"{each}.") for i in imports(path))}
        for name, path in benchmarks.items()
    }
    assert any(graph.values())
    graphlib.TopologicalSorter(graph).prepare()


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import json, sys\nsys.argv = ['mcpagent', '--help']\nfrom mcpagent.cli.main import run\n"
        "try:\n    run()\nfinally:\n    print(json.dumps(list(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert all(name in done.stdout for name in COMMANDS)
    assert HEAVY & set(json.loads(done.stderr)) == set()


def test_the_help_of_a_command_waits_for_no_server_and_no_model() -> None:
    code = (
        "import json, sys\nfrom mcpagent.cli.main import COMMANDS, run\n"
        "for name in COMMANDS:\n    sys.argv = ['mcpagent', name, '--help']\n"
        "    try:\n        run()\n    except SystemExit:\n        pass\n"
        "    print(json.dumps([name, *sys.modules]), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = [json.loads(line) for line in done.stderr.splitlines()]
    assert [name for name, *_ in loaded] == list(COMMANDS)
    assert not HEAVY - {"pydantic"} & {module for _, *modules in loaded for module in modules}


def test_every_foreign_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {canonicalize_name(Requirement(text).name) for texts in lists for text in texts}
    declared |= {"pydantic-core", "mcp-types", "pydantic-monty-client"}  # each pinned exactly by its package
    providers = importlib.metadata.packages_distributions()
    undeclared = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules().values()
        for name in sorted(foreign_imports(path))
        if not {canonicalize_name(dist) for dist in providers.get(name, [name])} & declared
    ]
    assert undeclared == []


# Declared for a package that loads it, at the place that is named.
LOADED_BY_ANOTHER = {
    "bitsandbytes": ("models/load.py", "BitsAndBytesConfig"),
    "trl": ("bridges/trl.py", "GRPOTrainer"),
    "tensorboard": ("train/trackers.py", "torch.utils.tensorboard"),
    "pydantic-monty": ("servers/sandbox/choose.py", "pydantic_monty"),
}


def test_every_declared_dependency_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name != "dev"}
    providers = importlib.metadata.packages_distributions()
    imported = {
        canonicalize_name(dist)
        for path in modules().values()
        for name in foreign_imports(path)
        for dist in providers.get(name, [name])
    }
    for name, (file, text) in LOADED_BY_ANOTHER.items():
        assert name not in imported and text in (PACKAGE / file).read_text(encoding="utf-8")
    unused = {
        f"{extra}: {name}"
        for extra, texts in {"base": project["dependencies"], **extras}.items()
        for text in texts
        if (name := canonicalize_name(Requirement(text).name))
        not in imported | LOADED_BY_ANOTHER.keys() | {"mcpagent"}
    }
    assert unused == set()


CORE = {
    *("core", "env", "reward", "rollout", "policy", "train", "tools", "config"),
    *("errors", "interrupts", "parts", "console", "storage", "models", "llm"),  # below it
}


def test_the_core_imports_nothing_from_around_it() -> None:
    assert CORE - LAYERS.keys() == set()
    outward = {
        f"{module} -> {target}"
        for module, path in modules().items()
        if _folder(module) in CORE
        for target in own_imports(path)
        if _folder(target) not in CORE
    }
    assert outward == set()


def test_the_reward_opens_no_file_and_asks_no_model() -> None:
    """`reward.terms` alone imports from elsewhere: the functions that a user names, and their settings."""
    imported = {
        module: {_folder(target) for target in own_imports(path)} - {"", "core", "errors", "reward"}
        for module, path in modules().items()
        if _folder(module) == "reward"
    }
    assert {module: rooms for module, rooms in imported.items() if rooms} == {
        "mcpagent.reward.terms": {"config"}
    }


def test_no_training_and_no_reward_reads_the_answer_in_any_form() -> None:
    """Not through other modules either: what it forgives would be learnt."""
    reached = {name for name in modules() if _folder(name) in ("train", "reward", "rollout", "env")}
    left = list(reached)
    while left:
        new = own_imports(modules()[left.pop()]) - reached
        reached |= new
        left += new
    assert "mcpagent.reward.answer.shown" in reached
    assert "mcpagent.evaluate.any_form" in modules().keys() - reached


_PLACE = re.compile(r"mcpagent\.(\w+)[\w.]*(:\w+)?")


def test_the_core_names_nothing_around_it_in_strings() -> None:
    """A place that is loaded by its name is an import too; `parts` alone says where they are."""
    named = {
        f"{module} -> {node.value}"
        for module, path in modules().items()
        if _folder(module) in CORE - {"parts"}
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (place := _PLACE.fullmatch(node.value)) and place[1] in LAYERS.keys() - CORE
    }
    assert named == set()


TOTAL = 64_442


def test_the_package_has_no_more_lines_than_its_total() -> None:
    """A change that needs room makes room; the total is lowered, and never raised."""
    sizes: Counter[str] = Counter()
    for module, path in modules().items():
        sizes[_folder(module)] += len(path.read_text(encoding="utf-8").splitlines())
    for room, lines in sorted(sizes.items()):
        print(f"{room:10} {lines:7,}")
    assert sizes.total() <= TOTAL


# Programs of their own, whose stdout is the wire to the process that started them.
SPEAK_A_PROTOCOL = {
    "servers/sandbox/inside.py",
}

_PRINTS = re.compile(r"print|pprint(\.\w+)?|(typer|click)\.s?echo|sys\.(__)?std(out|err)(__)?|rich\.print")


def _printing(path: Path) -> Iterator[str]:
    """What in a file writes to the terminal."""
    for node in nodes(path):
        if isinstance(node, ast.Attribute | ast.Name) and _PRINTS.fullmatch(ast.unparse(node)):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"


def test_nothing_prints_around_the_console() -> None:
    printing = [
        line
        for path in PACKAGE.rglob("*.py")
        if str(path.relative_to(PACKAGE)) not in {"console.py", *SPEAK_A_PROTOCOL}
        for line in _printing(path)
    ]
    assert list(_printing(PACKAGE / "console.py"))
    assert printing == []


# What reads a model's files, and the places that may: they check the seal of a checkpoint themselves, or
# read what has none. Everything else goes through `models.load`.
READERS = {"from_pretrained", "load_file", "safe_open", "load_checkpoint_and_dispatch", "torch.load"}
CHECKED_READERS = {
    "models.load": "_local_folder checks the seal",
    "train.learner.trainer_state": "Learner.restore only, after load_weights, which checks the seal",
    "policy.vllm.worker": "a file that the trainer wrote a moment ago, for this process alone",
    "models.weights": "weight_files checks the seal; files of trainer state, in Learner.restore only, come"
    " after load_weights, which does",
    "storage.trajectories": "tokens of trajectories, no model",
}


def test_only_loaders_that_check_the_seal_read_a_model() -> None:
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        for node in nodes(path):
            name = getattr(node, "attr", getattr(node, "id", ""))
            if name in READERS or (isinstance(node, ast.Attribute) and ast.unparse(node) in READERS):
                found.setdefault(module.removeprefix("mcpagent."), set()).add(name)
    assert found.keys() == CHECKED_READERS.keys(), found
    checkpoint = ast.parse((PACKAGE / "train" / "learner" / "trainer_state.py").read_text(encoding="utf-8"))
    loaders = [ast.unparse(node) for node in checkpoint.body if isinstance(node, ast.FunctionDef)]
    reading = [text for text in loaders if "load_file(folder" in text or "load_file(source" in text]
    assert len(reading) == 1 and all("verified(folder)" in text for text in reading)
    load = (PACKAGE / "models" / "load.py").read_text(encoding="utf-8")
    direct = [line for line in load.splitlines() if ".from_pretrained" in line]
    assert direct and all("_from_pretrained(" in line for line in direct)


def test_every_package_is_more_than_an_empty_folder() -> None:
    empty = [
        path.parent.name
        for path in PACKAGE.rglob("__init__.py")
        if path.parent != PACKAGE and len(list(path.parent.rglob("*.py"))) == 1
    ]
    assert empty == []


# Names that say nothing of what they hold: a noun does.
THROW_AWAY_NAMES = {"found", "own", "known", "wanted", "chosen"}


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, name) of each variable, attribute, parameter, function, class and import that a file binds."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)):
                yield node.lineno, name
            case ast.alias(name=name, asname=asname):
                yield node.lineno, asname or name


def test_no_binding_has_a_throw_away_name() -> None:
    source = (
        "import a as own\ndef known(chosen, *wanted): self.found = 1\nfor found in (): pass\n"
        "try: pass\nexcept E as own: pass\nmatch x:\n case [*known]: pass\n case {**wanted}: pass\n"
    )
    caught = [name for _, name in _bindings(ast.walk(ast.parse(source))) if name in THROW_AWAY_NAMES]
    assert Counter(caught) == {"own": 2, "known": 2, "wanted": 2, "found": 2, "chosen": 1}
    throw_away = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in modules().items()
        for line, name in _bindings(nodes(path))
        if name in THROW_AWAY_NAMES
    ]
    assert throw_away == []


@pytest.mark.parametrize("path", _shipped("configs"), ids=lambda path: path.name)
def test_every_config_loads_alone(path: Path) -> None:
    if path.parent.name == "accelerate":
        load_config_from_file(str(path))
    elif path.parent.name == "deepspeed":  # tests/train/learner/test_wrapping.py gives it to DeepSpeed
        assert json.loads(path.read_text(encoding="utf-8"))
    else:
        load_train_config([path])


def test_every_template_loads() -> None:
    files = _shipped("templates")
    sets = [ROOT / "templates" / name for name in ("tasks", "full")]
    assert all(load_templates(folder).templates for folder in sets)
    for path in files:
        if path.suffix == ".jinja":
            jinja2.Environment().parse(path.read_text(encoding="utf-8"))
        elif path == ROOT / "templates" / "prompts" / "prices.yaml":
            assert load_prices()
        elif path == ROOT / "templates" / "prompts" / "chats.yaml":
            assert list(chat_prompts()) == ["system", "user"]
        elif path.parent == ROOT / "templates" / "prompts":
            load_prompts(path)
        else:
            # What `load_templates` has not read would ship unchecked.
            assert path.parent in sets and path.suffix == ".yaml", path


# "embedded" is also the name of the data behind the built-in servers (`tools.upstream`).
NAMES_THE_DATA = {"config/schema.py", "servers/names.py"}
KNOWS_THE_MODEL = {"parts.py"}  # the line that names its builder


def test_only_the_demonstration_and_one_line_know_of_the_embedded_model() -> None:
    names_model: set[str] = set()
    for path in modules().values():
        file = str(path.relative_to(PACKAGE))
        if file.startswith("demo/"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = [str(n.value) for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        if "embedded" in texts or any("mcpagent.demo" in text for text in texts):
            names_model.add(file)
    assert names_model == NAMES_THE_DATA | KNOWS_THE_MODEL


def test_nothing_names_a_package_index() -> None:
    files = [ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run", ".pre-commit-config.yaml")]
    for path in [*files, *_shipped("constraints"), *_shipped(".github")]:
        assert not re.search(r"index-url|https?://|--find-links", path.read_text()), path


def test_the_workflow_runs_the_checks_on_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    job = workflow["jobs"]["test"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text) for text in project["classifiers"]
    ]
    *supported, tried = job["strategy"]["matrix"]["python"]
    assert supported == [match[1] for match in named if match]
    assert tried not in supported and tried in job["continue-on-error"]
    assert job["steps"][-1] == {"run": ".ci/run"} and os.access(ROOT / ".ci" / "run", os.X_OK)


def test_a_tag_publishes_without_a_stored_secret_once_the_package_and_the_site_are_built() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads a bare `on` as true
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["needs"] == ["build", "site"]
    assert not re.search(r"secrets\.|password|token:(?! write)", text)
    assert workflow["permissions"] == {"contents": "read"}


def test_every_hook_of_a_commit_runs_a_tool_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert all(hook["language"] == "system" for hook in hooks)
    tools = {hook["entry"].split()[0] for hook in hooks}
    assert tools == {".venv/bin/ruff", ".venv/bin/pyright", ".venv/bin/pytest"}


def test_the_wheel_holds_and_finds_its_configs_and_templates(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        archive.extractall(installed)
    shipped = [
        path.relative_to(ROOT)
        for path in [*_shipped("configs"), *_shipped("templates"), *_shipped("data/samples")]
    ]
    code = (
        "import sys, mcpagent\nfrom mcpagent.config.environment import resource_path\n"
        "print(mcpagent.__file__)\n[print(resource_path(name)) for name in sys.argv[1:]]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, shipped)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    )
    package, *found = map(Path, done.stdout.splitlines())
    assert package.is_relative_to(installed)
    for name, path in zip(shipped, found, strict=True):
        assert path.is_relative_to(installed)
        assert path.read_bytes() == (ROOT / name).read_bytes()
    assert (installed / "mcpagent" / "py.typed").is_file()
    assert list(installed.glob("*.dist-info/licenses/LICENSE"))
