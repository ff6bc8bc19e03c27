"""Keys, addresses and rates: by name from the environment or `.env`, never shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.errors import UserError
from mcpagent.servers.live.client import HIDDEN, Rate, read_settings
from mcpagent.servers.names import KEY_NAMES, UpstreamKind
from mcpagent.servers.registry import build_server
from tests.running import mcpagent
from tests.servers.live.world import without_live_settings

URL = "https://service.example/api"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key in the environment, and no `.env` in the working directory."""
    without_live_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("server", KEY_NAMES)
def test_a_missing_key_is_a_user_error_that_says_what_to_set_and_where(server: str) -> None:
    with pytest.raises(UserError) as raised:
        build_server(server, upstream=UpstreamKind.LIVE)
    name = KEY_NAMES[server][0]
    assert name in raised.value.message
    assert raised.value.remedy is not None
    assert raised.value.remedy.startswith(f"export {name}=...  (or put {name}=... into .env)")


def test_serve_exits_2_without_a_key() -> None:
    done = mcpagent("serve", "fmp", "--upstream", "live")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "error: FMP_API_KEY is not set: the live fmp needs a key\n  export FMP_API_KEY"
    )


def test_the_environment_wins_over_dotenv_and_the_new_name_over_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path(".env").write_text("POLYGON_API_KEY=old-from-file\nFMP_API_KEY=' from-file '\n")
    assert read_settings("polygon", base_url=URL).key == "old-from-file"
    assert read_settings("fmp", base_url=URL).key == "from-file"
    monkeypatch.setenv("POLYGON_API_KEY", "old-from-shell")
    assert read_settings("polygon", base_url=URL).key == "old-from-shell"
    monkeypatch.setenv("MASSIVE_API_KEY", "new-from-shell")
    settings = read_settings("polygon", base_url=URL)
    assert (settings.key, settings.key_name) == ("new-from-shell", "MASSIVE_API_KEY")


def test_a_key_is_in_no_repr_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMP_API_KEY", "secret/7Q")
    assert "secret" not in repr(read_settings("fmp", base_url=URL))
    for broken in ("secret\u00e9 7Q", "secret"):
        monkeypatch.setenv("FMP_API_KEY", broken)
        with pytest.raises(UserError) as raised:
            read_settings("fmp", base_url=URL)
        assert "FMP_API_KEY" in str(raised.value) and "secret" not in str(raised.value)


def test_a_key_is_hidden_in_every_form_in_which_a_service_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMP_API_KEY", "a/b+c=7Q")
    redact = read_settings("fmp", base_url=URL).redact
    # YS9iK2M9N1E= is the base64 of a/b+c=7Q.
    text = "a/b+c=7Q a%2Fb%2Bc%3D7Q YS9iK2M9N1E= a%2fb%2bc%3d7Q"
    assert redact(text) == " ".join([HIDDEN] * 4)


@pytest.mark.parametrize(
    "url", ["http://service.example", "ftp://127.0.0.1", "service.example", "http://127.0.0.1.evil.example"]
)
def test_a_key_is_not_sent_in_the_clear(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMP_API_KEY", "planted-key")
    monkeypatch.setenv("MCPAGENT_FMP_BASE_URL", url)
    with pytest.raises(UserError) as raised:
        read_settings("fmp", base_url=URL)
    assert raised.value.where == "MCPAGENT_FMP_BASE_URL"


def test_a_rate_is_calls_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMP_API_KEY", "planted-key")
    assert read_settings("fmp", base_url=URL).rate is None
    monkeypatch.setenv("MCPAGENT_FMP_RATE", "300/60")
    assert read_settings("fmp", base_url=URL).rate == Rate(300, 60)
    for wrong in ("300", "0/60", "1/0", "a/b", "inf/1", "1/nan"):
        monkeypatch.setenv("MCPAGENT_FMP_RATE", wrong)
        with pytest.raises(UserError, match="is not a rate"):
            read_settings("fmp", base_url=URL)


def test_an_embedded_server_loads_no_http_client() -> None:
    code = (
        "import sys\nfrom mcpagent.servers.registry import build_server\nbuild_server('slack')\n"
        "print([name for name in ('httpx', 'aiolimiter') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"
