"""The protocol's own suite, run against our client and against a server of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT
from tests.third_party.servers import SUITE, Desk

pytestmark = pytest.mark.registry

CLIENT = [
    *("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"),
    *(f"auth/metadata-{name}" for name in ("default", "var1", "var2", "var3")),
    *("auth/basic-cimd", "auth/pre-registration", "auth/resource-mismatch"),
    *("auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported"),
    *("auth/scope-omitted-when-undefined", "auth/scope-step-up", "auth/scope-retry-limit"),
    *(f"auth/token-endpoint-auth-{way}" for way in ("basic", "post", "none")),
    *("auth/2025-03-26-oauth-endpoint-fallback", "auth/2025-03-26-oauth-metadata-backcompat"),
    *("auth/offline-access-scope", "auth/offline-access-not-supported"),
]
# Not run: auth/client-credentials-jwt, -basic and auth/cross-app-access-complete-flow are extensions for
# programs that log in without a person; a bearer token in `headers` is what such a program gives us.
NOT_PASSED = {
    # It serves metadata at the root whose issuer is another address, at /oauth. RFC 8414, 3.3 has a client
    # refuse that, since such a document may lead to the login page of another; the SDK does.
    "auth/2025-03-26-oauth-metadata-backcompat": "issuer mismatch",
}
# What a server of tools has; the others are about resources, prompts, completion, logging and the tools of a
# server that is made for the suite.
SERVER = ["server-initialize", "ping", "tools-list", "dns-rebinding-protection"]


def _run(desk: Desk, *words: str) -> tuple[int, str]:
    """The exit status of the suite, and what it said."""
    desk.install("conformance")
    env = {**os.environ, **desk.own_environment(), "PYTHONPATH": str(ROOT)}
    command = [*SUITE, *words]
    done = subprocess.run(command, env=env, cwd=desk.folder, text=True, timeout=200, capture_output=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", CLIENT)
def test_our_client_does_what_the_protocol_asks_of_clients(desk: Desk, scenario: str) -> None:
    client = f"{sys.executable} {Path(__file__).with_name('conformance_client.py')}"
    code, said = _run(desk, "client", "--command", client, "--scenario", scenario, "--timeout", "120000")
    if (reason := NOT_PASSED.get(scenario)) is not None:
        assert code != 0 and reason in said
        return
    passed = re.search(r"Passed: (\d+)/(\d+), 0 failed, 0 warnings", said)
    assert code == 0 and passed and passed[1] == passed[2] != "0", said


@pytest.mark.parametrize("scenario", SERVER)
def test_a_server_of_ours_does_what_the_protocol_asks_of_servers(desk: Desk, scenario: str) -> None:
    serve = (
        sys.executable,
        "-m",
        "mcpagent.cli.main",
        "serve",
        "slack",
        "--transport",
        "http",
        "--port",
        "0",
    )
    url = desk.start(serve, ready="/mcp").split()[-1]
    try:
        code, said = _run(desk, "server", "--url", url, "--scenario", scenario)
    finally:
        desk.stop()
    assert code == 0 and re.search(r"[1-9]\d* passed, 0 failed|Passed: ([1-9]\d*)/\1, 0 failed", said), said
