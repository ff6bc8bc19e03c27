"""HTTP as it is spoken to a server: no limits of a pool, no time-outs but for connecting."""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import Mapping

import httpx2

# It logs every URL in full, and keys are kept in URLs.
logging.getLogger("httpx2").setLevel(logging.WARNING)

_CONNECT_TIMEOUT_S = 15.0
_REDIRECTS_MAX = 5
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def http_client(url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for the server at `url`; `headers` go with every request."""
    address = httpx2.URL(url)
    return httpx2.AsyncClient(
        headers=dict(headers),
        # The pool's own limits would lose the calls that wait for a connection. Without TLS there is
        # nothing to verify: no redirect leads to another scheme.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
        timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        verify=_tls() if address.scheme == "https" else False,
        # Proxies are in the environment, and no proxy reaches what listens on this machine alone.
        trust_env=address.host not in _LOOPBACK,
    )


async def send(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """The response to a request, its body still to be read.

    Redirects are followed on the same host and scheme, with the same method: the keys are its own. Any other
    redirect is itself the response. Raises httpx2.TooManyRedirects, and what HTTP raises.
    """
    for _ in range(_REDIRECTS_MAX):
        response = await client.send(request, stream=True, follow_redirects=False)
        following = response.next_request
        if (
            following is None
            or following.method != request.method
            or _origin(following.url) != _origin(request.url)
        ):
            return response
        await response.aclose()
        request = following
    raise httpx2.TooManyRedirects("it redirects in a circle", request=request)


def host_of(url: httpx2.URL) -> str:
    """As much of a URL as may be shown."""
    return f"{url.scheme}://{url.netloc.decode('ascii').rpartition('@')[2]}"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # 20 ms, so one for all
