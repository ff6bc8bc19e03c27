"""Draw the picture of docs/results.md and README, light and dark, from docs/results.jsonl: `make docs`.

A run that says how it is `drawn` (greedy or sampled) is in it, below the others of its `group`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
# By the stage of a run, what its bar is called; in braces, what the run says.
BARS = {
    "untrained": "untrained",
    "untrained_2_shots": "2 examples",
    "warm_start": "+ {demonstrations} demonstrations",
    "trained": "+ trial and error",
}
_THEMES = {
    "light": ("#ffffff", "#1f2328", "#59636e", "#d1d9e0", ("#818b98", "#bf8700", "#54aeff", "#0969da")),
    "dark": ("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", ("#656c76", "#9e6a03", "#1f6feb", "#79c0ff")),
}
# In units of the drawing, which is as wide as a phone's page can show with letters of 16.
_WIDTH, _LEFT, _RIGHT, _ROW, _BAR = 520, 192, 458, 24, 16
_TICKS = (0, 0.25, 0.5, 0.75, 1)


def picture(theme: str) -> str:
    """Return the drawing of a theme, "light" or "dark", as SVG."""
    lines = (_HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [run for run in map(json.loads, lines) if "drawn" in run]
    paper, ink, pale, _, _ = _THEMES[theme]
    models = ", ".join(sorted({run["model"] for run in runs}))
    parts, y = list[str](), 66
    for group in dict.fromkeys(run["group"] for run in runs):
        parts.append(_text(12, y + 22, group, pale))
        y += 38
        for run in runs:
            if run["group"] == group:
                parts += _run(run, y, theme)
                y += 38 + _ROW * len(list(_drawn(run)))
    parts += [_text(_x(tick), y + 8, f"{100 * tick:.0f}", pale, "middle") for tick in _TICKS]
    told = [
        f"{run['server']}, {BARS[stage].format(**run)}: {_said(success)}"
        for run in runs
        for stage, success in _drawn(run)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 24}" role="img" '
            'aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="16">',
            f'<title id="title">Held-out tasks solved by {escape(models)}</title>',
            f'<desc id="desc">{escape("; ".join(told))}</desc>',
            f'<rect width="100%" height="100%" rx="8" fill="{paper}"/>',
            _text(12, 30, "Held-out tasks solved, per cent", ink, bold=True),
            _text(12, 54, f"{models}; lines are 95% intervals", pale),
            *parts,
            "</svg>\n",
        ]
    )


def _run(run: dict[str, Any], y: int, theme: str) -> Iterator[str]:
    """Yield the heading of a run, its grid and its bars; the first may be of fewer tasks than the last."""
    paper, ink, _, rule, colours = _THEMES[theme]
    bars = list(_drawn(run))
    n = bars[-1][1]["n"]
    machine = run["machine"].partition(" with")[0].removeprefix("one ")
    yield _text(12, y + 16, run["server"], ink, bold=True, then=f"{machine}, n = {n}, {run['drawn']}")
    y += 26
    for tick in _TICKS:
        yield f'<path d="M{_x(tick)} {y - 2}V{y + _ROW * len(bars) - 6}" stroke="{rule}"/>'
    for place, (stage, success) in enumerate(bars):
        label = BARS[stage].format(**run) + (f", n = {success['n']}" if success["n"] != n else "")
        fill = colours[list(BARS).index(stage)]
        yield _bar(y + _ROW * place, run["server"], label, success, (fill, ink, paper))


def _drawn(run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each stage of a run that was measured as the run is drawn."""
    for stage in BARS:
        if success := run.get(stage, {}).get(run["drawn"]):
            yield stage, success


def _said(success: dict[str, Any]) -> str:
    value, low, high = (f"{100 * success[key]:.3g}" for key in ("value", "low", "high"))
    return f"{value}% [{low}, {high}], n = {success['n']}"


def _x(rate: float) -> float:
    return round(_LEFT + (_RIGHT - _LEFT) * rate, 2)


def _bar(y: int, server: str, label: str, success: dict[str, Any], colours: tuple[str, str, str]) -> str:
    """Return a bar: its label on the left, its interval as a line with ends, its value on the right."""
    fill, ink, paper = colours
    low, high, middle = _x(success["low"]), _x(success["high"]), y + _BAR // 2
    ends = f"M{low} {middle - 4}v8M{low} {middle}H{high}M{high} {middle - 4}v8"
    width = round(_x(success["value"]) - _LEFT, 2)
    return (
        f"<g><title>{escape(f'{server}, {label}: {_said(success)}')}</title>"
        + _text(_LEFT - 8, y + 13, label, ink, "end")
        + f'<rect x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}" fill="{fill}"/>'
        + f'<path d="{ends}" stroke="{paper}" stroke-width="4" fill="none"/>'
        + f'<path d="{ends}" stroke="{ink}" stroke-width="1.5" fill="none"/>'
        + _text(_WIDTH - 12, y + 13, f"{100 * success['value']:.3g}", ink, "end")
        + "</g>"
    )


def _text(
    x: float, y: int, text: str, colour: str, anchor: str = "start", *, bold: bool = False, then: str = ""
) -> str:
    weight = ' font-weight="600"' if bold else ""
    more = f'<tspan font-weight="400"> {escape(then)}</tspan>' if then else ""
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(text)}{more}</text>'


def main() -> None:
    for theme in _THEMES:
        (_HERE / "assets" / f"results-{theme}.svg").write_text(picture(theme), encoding="utf-8")


if __name__ == "__main__":
    main()
