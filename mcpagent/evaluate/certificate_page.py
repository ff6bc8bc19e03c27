"""The page of a certificate: one self-contained document, the same for the same certificate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mcpagent.core.hidden_text import printable
from mcpagent.core.records import JsonObject
from mcpagent.evaluate.certificate import BASELINE, TRAINED, Certificate, version_of

_STYLE = """
:root{color-scheme:light dark;--line:#d7d9e0;--soft:#5b6070;--card:#f6f7f9;--accent:#2457c5}
@media(prefers-color-scheme:dark){:root{--line:#363a45;--soft:#a3a9b8;--card:#1b1e25;--accent:#8fb2ff}}
body{font:16px/1.55 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p{max-width:48rem}.soft{color:var(--soft)}.gain{font-size:2.4rem;font-weight:650;color:var(--accent)}
.card{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:1rem 1.25rem}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{text-align:left;padding:.4rem 0 .4rem 1.2rem;border-bottom:1px solid var(--line);vertical-align:top}
th:first-child,td:first-child{padding-left:0}td{overflow-wrap:anywhere}td:first-child{overflow-wrap:normal}
td.n,th.n{text-align:right;white-space:pre-line;font-variant-numeric:tabular-nums}
code{font-size:.85em;overflow-wrap:anywhere}li{margin:.35rem 0;max-width:48rem}
@media(max-width:48rem){thead{display:none}
tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--line)}
td{display:flex;justify-content:space-between;gap:1.2rem;padding:.15rem 0;border:0}td.n{white-space:normal}
td:first-child{font-weight:600}td[data-of]::before{content:attr(data-of);color:var(--soft)}}
"""


def certificate_page(certificate: Certificate) -> str:
    """HTML with its style inside; it asks for nothing and runs nothing."""
    name = _text(certificate.run.get("name", "a run"))
    body = [
        f"<h1>Certificate of {name}</h1>",
        f'<p class="soft">{_text(_summary(certificate))}</p>',
        _headline(certificate),
        "<h2>What each side had, and did</h2>",
        _budget(certificate),
        "<h2>What else could explain the gain</h2>",
        _controls(certificate),
        "<h2>Can the reward be had for nothing?</h2>",
        _attacks(certificate),
        "<h2>Was what sampled what was trained?</h2>",
        _sync(certificate),
        "<h2>What was measured with what</h2>",
        _facts(certificate),
        "<h2>What this certificate cannot show</h2>",
        "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in certificate.cannot_show) + "</ul>",
        "<h2>Check it yourself</h2>",
        "<p><code>mcpagent certify --check FOLDER</code> carries out every episode again from the model's "
        "texts, grades it, and derives every figure; with <code>--replay 8</code> the models play eight "
        "episodes of each side again. Neither believes anything that this page says.</p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Certificate of {name}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _summary(certificate: Certificate) -> str:
    tasks, conditions = certificate.figures["tasks"], certificate.conditions
    sampling = "greedy" if conditions.temperature == 0 else f"temperature {conditions.temperature:g}"
    return (
        f"{tasks['counted']} held-out tasks, {conditions.samples} attempts each, {sampling}, on both sides "
        f"with the same seeds, tools and limits. {tasks['excluded']} of {tasks['held_out']} held-out tasks "
        "are left out because training has them."
    )


def _headline(certificate: Certificate) -> str:
    gain = certificate.figures["gain"]
    difference = gain["difference"]
    if difference is None or difference["value"] is None:
        return f'<div class="card"><p>No figure: {_text(gain["why_no_verdict"])}.</p></div>'
    verdicts = {
        "b is better": "The trained model is better.",
        "a is better": "The trained model is worse.",
        "no difference shown": "No difference is shown.",
        "no verdict": f"No verdict: {gain.get('why_no_verdict')}.",
    }
    p_value = "" if gain["p_value"] is None else f", p = {gain['p_value']:.3g}"
    return (
        '<div class="card"><div class="gain">'
        f"{_points(difference['value'])}</div><p>points of task success, trained against baseline, task by "
        f"task; 95% interval {_interval(difference)}{_text(p_value)}. {_text(verdicts[gain['verdict']])} "
        f"It wins {gain['wins']} tasks, loses {gain['losses']} and ties {gain['ties']}. An episode that "
        "could not be scored counts as failed.</p></div>"
    )


def _budget(certificate: Certificate) -> str:
    budget = certificate.figures["budget"]
    passes = sorted(
        {name for side in budget.values() for name in side if name.startswith("pass")}, key=_order
    )
    head = ["side", "episodes", "unscored", "tokens sampled", "tool calls", *passes]
    rows = [
        [
            side,
            f"{facts['episodes']:,}",
            str(facts["unscored"]),
            f"{facts['sampled_tokens']:,}",
            f"{facts['tool_calls']:,}",
            *(_rate(facts[name]) if name in facts else "" for name in passes),
        ]
        for side, facts in sorted(
            budget.items(), key=lambda item: (item[0] != BASELINE, item[0] != TRAINED, item[0])
        )
    ]
    about = (
        "<p>pass@k: the share of tasks that at least one of k attempts solves; pass^k: that all k solve. "
        "Brackets are 95% intervals, with the task as the independent unit.</p>"
    )
    return _table(head, rows, numbers=True) + about


def _order(name: str) -> tuple[str, int]:
    return name[4], int(name[5:])


def _controls(certificate: Certificate) -> str:
    controls = certificate.figures["controls"]
    if not controls:
        return (
            "<p>Nothing was tried: this run has no controls (random rewards, more demonstrations, rejection "
            "sampling), so the gain may be one that any training would have made.</p>"
        )
    rows: list[list[str]] = []
    for name, facts in controls.items():
        against = facts["trained_against_it"]
        difference, share = against["difference"], facts["share_of_the_run"]
        shown = "" if difference is None else f"{_points(difference['value'])} {_interval(difference)}"
        spent = "not recorded" if share is None else f"{share:.0%}"
        equal = "yes" if facts["is_at_equal_cost"] else "no: it had less"
        rows.append([name, shown, against["verdict"].replace("b is", "trained is"), spent, equal])
    head = ["control", "trained against it, points", "verdict", "cost of the run's", "equal cost"]
    return _table(head, rows)


def _attacks(certificate: Certificate) -> str:
    attacks = certificate.figures["attacks"]
    rows = [[kind, str(c["episodes"]), str(c["succeeded"])] for kind, c in attacks["kinds"].items()]
    gold = attacks["gold"]
    rows.append(["the plan itself (must succeed)", str(gold["episodes"]), str(gold["succeeded"])])
    paid = f"{attacks['succeeded']} of {attacks['episodes']} attacks on these very tasks were a success."
    return f"<p>{_text(paid)}</p>" + _table(["attack", "episodes", "successes"], rows, numbers=True)


def _sync(certificate: Certificate) -> str:
    records = certificate.figures["records"]

    def shown(value: float | None, unit: str) -> str:
        return "not recorded" if value is None else f"{value:.3g} {unit}"

    return _table(
        ["", ""],
        [
            ["training steps", str(records["steps"])],
            ["proofs that the sampler had the trained weights", str(records["weight_sync_proofs"])],
            ["largest difference in a proof", shown(records["weight_sync_largest_nats"], "nats a token")],
            [
                "largest difference of sampler and trainer on a trained token",
                shown(records["sampler_trainer_largest_nats"], "nats"),
            ],
            [
                "tokens that a full rendering gives otherwise",
                shown(records["token_drift_mean_share"], "(share)"),
            ],
            ["training episodes that could not be scored", str(records["unscored_episodes"])],
        ],
    )


def _facts(certificate: Certificate) -> str:
    rows = [[f"{name}, weights", _hash(side.weights_sha256)] for name, side in certificate.sides.items()]
    rows += [
        ["chat template", _hash(certificate.sides[BASELINE].chat_template_sha256)],
        *([f"tasks, {name}", _hash(value)] for name, value in certificate.datasets.items()),
        ["tools", _hash(certificate.catalog_hash)],
        ["reward, code", _hash(certificate.grader.get("code_sha256"))],
        ["reward in training", _reward(certificate.reward)],
        ["code", version_of(certificate.code)],
        ["seed", f"{certificate.conditions.seed}, which follows from all of these"],
        *([_NAMES[name], _shown(value)] for name, value in certificate.run.items() if name in _NAMES),
    ]
    return _table(["", ""], rows)


_NAMES = {
    "checkpoint_step": "step of the trained model",
    "algorithm": "algorithm",
    "mode": "what was trained",
    "canary_every": "steps between proofs of weight sync",
    "baseline_is_the_runs": "the baseline is what the run began with",
    "heldout_is_the_runs": "the run named these held-out tasks before its first step",
}


def _shown(value: object) -> str:
    named = {True: "yes", False: "no", None: "not recorded"}
    return named[value] if value is None or isinstance(value, bool) else str(value)


def _reward(reward: JsonObject) -> str:
    if not reward:
        return "not recorded"
    weights = ", ".join(f"{name} {weight:g}" for name, weight in reward["weights"].items())
    kept = (
        "every success above every failure"
        if reward["every_success_above_every_failure"]
        else ("a failure can earn as much as a success")
    )
    return f"{weights}; {kept}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """`numbers`: of all columns but the first."""

    def cells(tag: str, row: Sequence[str]) -> str:
        shown: list[str] = []
        for place, (name, cell) in enumerate(zip(head, row, strict=True)):
            kind = ' class="n"' if numbers and place else ""
            of = f' data-of="{_text(name)}"' if tag == "td" and name and place else ""  # on a narrow screen
            shown.append(f"<{tag}{kind}{of}>{_text(cell)}</{tag}>")
        return "".join(shown)

    top = f"<thead><tr>{cells('th', head)}</tr></thead>" if any(head) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _rate(metric: JsonObject) -> str:
    if metric["value"] is None:
        return "-"
    interval = ""
    if metric["ci_low"] is not None:
        interval = f"\n[{metric['ci_low'] * 100:.1f},\u00a0{metric['ci_high'] * 100:.1f}]"
    return f"{metric['value']:.1%}{interval}"


def _points(value: float) -> str:
    return f"{value * 100:+.1f}"


def _interval(metric: JsonObject) -> str:
    if metric["ci_low"] is None:
        return "not known"
    return f"[{_points(metric['ci_low'])}, {_points(metric['ci_high'])}]"


def _hash(value: str | None) -> str:
    return "not known" if value is None else value


def _text(value: object) -> str:
    return escape(printable(str(value)))
