"""What a real child process sees of our environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import StdioServer
from tests.tools.support import call, stdio_echo

PASSED = {
    "SSL_CERT_FILE": "/company/ca.pem",
    "REQUESTS_CA_BUNDLE": "/company/ca.pem",
    "NODE_EXTRA_CA_CERTS": "/company/ca.pem",
    "HTTP_PROXY": "http://proxy.example:8080",
    "https_proxy": "proxy.example:8080",
    "NO_PROXY": "localhost,127.0.0.1,.example",
}
WITHHELD = {
    "HTTPS_PROXY": "http://me:s3cret@proxy.example:8080",
    "all_proxy": "me@proxy.example:8080",
    "OPENAI_API_KEY": "s3cret",
}


async def _environment_of(server: StdioServer) -> dict[str, str]:
    async with ToolPool([server]) as pool, pool.session() as session:
        process = Path("/proc") / str((await call(session, "pid")).content) / "environ"
        pairs = process.read_text().rstrip("\0").split("\0")
        return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads the environment from /proc")
async def test_a_server_gets_certificates_and_proxies_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**PASSED, **WITHHELD}.items():
        monkeypatch.setenv(name, value)
    seen = await _environment_of(stdio_echo())
    assert {name: seen.get(name) for name in PASSED} == PASSED
    assert not WITHHELD.keys() & seen.keys()
    assert "s3cret" not in "".join(seen.values())
    named = await _environment_of(
        stdio_echo(env={"HTTPS_PROXY": WITHHELD["HTTPS_PROXY"], "NO_PROXY": "none"})
    )
    assert (named["HTTPS_PROXY"], named["NO_PROXY"]) == (WITHHELD["HTTPS_PROXY"], "none")
