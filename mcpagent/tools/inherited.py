"""What the process of a server gets of our own environment, besides what it is given by name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_USER = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
# How to get out to the network, and whom to trust there: without them nothing works behind a company's proxy.
_TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_PROXY_NAMES = _PROXIES + tuple(name.lower() for name in _PROXIES)
_HAS_USER = re.compile(r"(?:[a-z][a-z0-9+.-]*://)?[^/@\s]+@", re.IGNORECASE)


def inherited() -> dict[str, str]:
    """HOME, PATH and the like, certificates, and proxies but those whose address holds a user or password."""
    held_back = withheld(os.environ)
    wanted = (name for name in _USER + _TRUST + _PROXY_NAMES if name not in held_back)
    return {name: os.environ[name] for name in wanted if os.environ.get(name)}


def withheld(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The proxy variables that are secrets, which a server gets only where its configuration names them."""
    return tuple(name for name in _PROXY_NAMES if _HAS_USER.match(environment.get(name, "")))
