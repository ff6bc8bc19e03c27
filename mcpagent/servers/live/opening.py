"""The live upstream of a server, by its name."""

from __future__ import annotations

from collections.abc import Collection

from mcpagent.servers.builtin import Upstream
from mcpagent.servers.live import fmp, polygon, tavily
from mcpagent.servers.live.client import RequestPace, read_settings
from mcpagent.storage.packages import require

_SERVICES = {
    "polygon": (polygon.BASE_URL, polygon.RATE, polygon.open_polygon),
    "fmp": (fmp.BASE_URL, fmp.RATE, fmp.open_fmp),
    "tavily": (tavily.BASE_URL, tavily.RATE, tavily.open_tavily),
}


def live_upstream(name: str, *, allow_send: Collection[str] = ()) -> Upstream:
    """The live upstream of server `name`, whose clients share its rate. `allow_send` names the channels that
    slack may write to. Raises UserError where the key, or a package, is missing."""
    if name == "slack":
        return _slack(allow_send)
    base_url, rate, opened = _SERVICES[name]
    settings = read_settings(name, base_url=base_url)
    pace = RequestPace(settings.rate or rate)
    return Upstream(open=lambda: opened(settings, pace=pace), is_live=True, redact=settings.redact)


def _slack(allow_send: Collection[str]) -> Upstream:
    require("servers", use="the live slack")
    from mcpagent.servers.live import slack  # an extra, which the other servers do without
    from mcpagent.servers.live import slack as slack_api

    settings = read_settings("slack", base_url=slack_api.BASE_URL)
    paces = {method: RequestPace(settings.rate or rate) for method, rate in slack_api.RATES.items()}
    channels = slack.allowed_channels(allow_send)
    return Upstream(
        open=lambda: slack.open_slack(settings, paces=paces, allow_send=channels),
        is_live=True,
        redact=settings.redact,
    )
