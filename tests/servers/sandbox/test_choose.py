"""Which sandbox is taken, and that none is taken in the place of another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from mcpagent.errors import UserError
from mcpagent.servers.sandbox.choose import choose_sandbox
from mcpagent.servers.sandbox.contract import SandboxKind, SandboxLimits
from tests.servers.sandbox.boxes import KINDS

# Other limits than any other test's: a choice is made once for each process.
OWN = SandboxLimits(wall_s=2.5)
CHOOSE = (
    "import sys\n"
    "from mcpagent.errors import UserError\n"
    "from mcpagent.servers.sandbox.choose import choose_sandbox\n"
    "from mcpagent.servers.sandbox.contract import SandboxKind\n"
    "for kind in sys.argv[1:]:\n"
    "    try:\n        print(choose_sandbox(SandboxKind(kind)))\n"
    "    except UserError as error:\n        print(str(error).splitlines()[0])\n"
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sandbox_asked_for_by_name_is_the_one_used(kind: SandboxKind) -> None:
    choice = choose_sandbox(kind)
    assert choice.sandbox.name == kind
    assert choice.passed_over == ()


def test_auto_says_why_a_better_one_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # so that no bwrap is found
    choice = choose_sandbox(SandboxKind.AUTO, OWN)
    assert choice.sandbox.name == "monty"
    assert choice.passed_over[0] == "bubblewrap: bubblewrap (bwrap) is not installed"
    assert "bwrap" in str(choice)


def test_one_asked_for_by_name_is_never_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"bubblewrap: bubblewrap \(bwrap\) is not installed") as raised:
        choose_sandbox(SandboxKind.BUBBLEWRAP, OWN)
    assert raised.value.where == "--sandbox"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="not tested here: apt install bubblewrap")
def test_where_bubblewrap_runs_at_all_its_sandbox_works() -> None:
    """The other tests of a backend are skipped where it does not work; this one says if it should."""
    options = ["--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/"]
    if (done := subprocess.run(["bwrap", *options, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"this machine forbids it: {done.stderr.strip()}")
    assert choose_sandbox(SandboxKind.BUBBLEWRAP, OWN).passed_over == ()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_where_the_kernel_forbids_namespaces_the_choice_falls_to_monty_and_says_why() -> None:
    """As in a container: a real kernel that refuses, by the limit of a surrounding user namespace."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces || exit 99; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", CHOOSE, "auto", "bubblewrap"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    if done.returncode:
        pytest.skip(f"no user namespace to forbid them in: {done.stderr.strip()}")
    auto, named = done.stdout.splitlines()
    assert auto.startswith("code runs in the monty sandbox")
    assert named.startswith("--sandbox: no sandbox to run code in: bubblewrap: ")
