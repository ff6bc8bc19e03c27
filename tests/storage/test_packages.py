"""Versions of packages, whoever provides them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_COUNT = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from mcpagent.storage.packages import installed_version
found = [installed_version("typer"), installed_version("no-such-package")]
assert found[0] and found[1] is None, found
print(sum(name.endswith(("RECORD", "top_level.txt")) for name in opened))
"""


def test_the_version_of_a_package_is_read_without_the_file_lists_of_all_others() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0


def test_a_module_that_another_package_provides_has_the_version_of_that_one(tmp_path: Path) -> None:
    (tmp_path / "wonderful.py").touch()
    described = tmp_path / "wonderful_cpu-3.1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: wonderful-cpu\nVersion: 3.1\n")
    (described / "RECORD").write_text("wonderful.py,,\n")
    code = "from mcpagent.storage.packages import installed_version as v; print(v('wonderful'))"
    command = [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r}); {code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3.1\n"
