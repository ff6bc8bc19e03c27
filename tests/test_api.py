"""The Python API: what it exports, what importing it costs, and the examples of its page."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mcpagent
from tests.house import PACKAGE, ROOT, modules

PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^## \d\. (.*?)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
JOBS = ("run_training", "evaluate_model", "collect_rollouts")


def _typed() -> dict[str, str]:
    """By name, the module that a type checker takes it from."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def _values(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout)


def test_importing_the_package_loads_nothing_behind_it() -> None:
    loaded = set(_values("import mcpagent, sys, json; print(json.dumps(list(sys.modules)))"))
    ours = {name for name in loaded if name.partition(".")[0] == "mcpagent"}
    assert ours == {"mcpagent"}
    assert loaded & {"torch", "pydantic", "transformers", "mcp", "numpy", "rich"} == set()


def test_every_name_is_what_a_type_checker_takes_it_for() -> None:
    typed = _typed()
    assert len(typed) > 30
    for name, module in typed.items():
        assert module in modules()
        assert getattr(mcpagent, name) is getattr(sys.modules[module], name), name
        assert name in dir(mcpagent)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Taks'"):
        _ = mcpagent.Taks  # type: ignore[attr-defined]


def test_a_package_stays_a_package_whatever_was_imported_before() -> None:
    code = (
        "import json, sys\nfrom mcpagent import run_training, evaluate_model, collect_rollouts\n"
        "from mcpagent import evaluate, rollout, train\n"
        "print(json.dumps([type(each).__name__ for each in (evaluate, rollout, train)]))"
    )
    assert _values(code) == ["module"] * 3


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "data" / "samples", tmp_path / "data" / "samples")
    monkeypatch.chdir(tmp_path)
    results = {}
    for number, (_, code) in enumerate(EXAMPLES, start=1):
        script = tmp_path / f"example_{number}.py"
        script.write_text(code)
        results[number] = runpy.run_path(str(script), run_name="__main__")
    assert len(results[1]["tasks"]) == len(
        (tmp_path / "data" / "samples" / "train.jsonl").read_text().splitlines()
    )
    assert results[3]["trajectory"].reward == 0.0  # an answer without a call
    assert results[4]["success"].value == 1.0  # the gold plan
    assert (tmp_path / "gold.jsonl.zst").is_file()
    assert results[5]["outcome"].steps == 2 and results[5]["outcome"].best_checkpoint.is_dir()
    assert results[6]["comparison"].difference.n == len(results[6]["before"].result.tasks) > 0


def test_every_exported_name_is_on_the_page_or_its_module_is_documented() -> None:
    assert [
        name for name in (*JOBS, "compare", "summarise", "ToolPool", "UserError") if name not in PAGE
    ] == []
