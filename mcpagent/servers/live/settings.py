"""What a live upstream is given: a key, an address and a rate, from the environment or from `.env`."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus, urlsplit

from mcpagent.config.environment import environment
from mcpagent.errors import UserError
from mcpagent.servers.names import KEY_NAMES, live_variable

HIDDEN = "[key]"  # what stands where a key stood

# ASCII that JSON writes as it is, so that a key is found in it, and long enough not to be found by chance.
_KEY = re.compile(r"[!#-\[\]-~]{8,}")


@dataclass(frozen=True)
class Rate:
    """`calls` in any `period_s`, all at once at first."""

    calls: float
    period_s: float

    def __str__(self) -> str:
        return f"{self.calls:g} calls in {self.period_s:g} s"


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """One service as this process uses it. `rate` None is the documented one.

    `deadline_s` bounds one request with its repeats and waits. It is below the 30 s that a tool call has by
    default, so that the reason reaches the client. `backoff_s` is the first pause where the service names
    none; each repeat doubles it.
    """

    service: str
    key: str = field(repr=False)
    key_name: str
    base_url: str
    rate: Rate | None = None
    deadline_s: float = 25.0
    attempts: int = 4
    backoff_s: float = 0.5

    def redact(self, text: str) -> str:
        """`text` without the key, in any form in which a service or a library may repeat it."""
        encoded = base64.b64encode(self.key.encode()).decode()
        plain = "|".join(re.escape(form) for form in (self.key, encoded))
        in_urls = "|".join(re.escape(form) for form in (quote(self.key, safe=""), quote_plus(self.key)))
        return re.sub(f"{plain}|(?i:{in_urls})", HIDDEN, text)


def read_settings(service: str, *, base_url: str) -> LiveSettings:
    """The settings of a service: its key by name, `MCPAGENT_<NAME>_BASE_URL` in place of `base_url`, and
    `MCPAGENT_<NAME>_RATE` as CALLS/SECONDS. Raises UserError, which never shows the key."""
    known = environment()
    key_name, key = _key(service, known)
    url_name = live_variable(service, "BASE_URL")
    return LiveSettings(
        service=service,
        key=key,
        key_name=key_name,
        base_url=_base_url(url_name, known.get(url_name) or base_url),
        rate=_rate(live_variable(service, "RATE"), known),
    )


def _key(service: str, known: Mapping[str, str]) -> tuple[str, str]:
    names = KEY_NAMES[service]
    for name in names:
        key = known.get(name, "").strip()
        if key and not _KEY.fullmatch(key):
            raise UserError(f"{name} holds what can be no key", where=service, remedy="Copy it anew.")
        if key:
            return name, key
    raise UserError(
        f"{' or '.join(names)} is not set: the live {service} needs a key",
        remedy=f"export {names[0]}=...  (or put {names[0]}=... into .env); without one: --upstream embedded",
    )


def _base_url(name: str, url: str) -> str:
    """`url` without its last slash. A key travels over TLS, or does not leave this machine."""
    parts = urlsplit(url)
    is_here = parts.hostname in {"127.0.0.1", "::1", "localhost"}
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_here)):
        raise UserError(f"{url!r} is no https:// address", where=name, remedy=f"unset {name}")
    return url.rstrip("/")


def _rate(name: str, known: Mapping[str, str]) -> Rate | None:
    text = known.get(name, "")
    if not text:
        return None
    calls, _, period_s = text.partition("/")
    try:
        rate = Rate(float(calls), float(period_s))
    except ValueError:
        rate = Rate(0, 0)
    if not (1 <= rate.calls < math.inf and 0 < rate.period_s < math.inf):
        raise UserError(
            f"{text!r} is no rate", where=name, remedy=f"{name}=100/60 is 100 calls in 60 seconds"
        )
    return rate
