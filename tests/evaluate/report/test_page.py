from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mcpagent.core.trajectory import Judgement, Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import break_down
from mcpagent.evaluate.report.document import Cost, document_of
from mcpagent.evaluate.report.episode_html import episode_html
from mcpagent.evaluate.report.episodes import gold_calls
from mcpagent.evaluate.report.page import cost_text, write_report
from mcpagent.evaluate.report.run_data import read_run
from mcpagent.evaluate.report.tables import TERMS, breakdown_tables
from mcpagent.evaluate.report.template import script_json
from mcpagent.evaluate.summary import summarise
from mcpagent.reward.rule import TERM_NAMES
from tests.evaluate.records import call, result, trajectory, turn
from tests.evaluate.report.browser import chromium
from tests.evaluate.run_folder import write_evaluation, write_run
from tests.evaluate.test_breakdown import CASES, RIGHT, failed, task
from tests.running import mcpagent

ATTACK = '</pre></script><script>document.title="owned"</script><img src=x onerror=alert(1)>'


class _Page(HTMLParser):
    """Elements with their attributes, and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> _Page:
    run = write_run(tmp_path_factory.mktemp("runs") / "learned")
    return _Page(write_report(run).read_text())


def _attacked(entry: Trajectory) -> Trajectory:
    evil = call(0, tool=ATTACK, **{ATTACK: ATTACK})
    turns = [
        turn(0, ATTACK, calls=[evil], results=[result(0, ATTACK, nonce=ATTACK)], broken=[ATTACK]),
        turn(1, ATTACK),
    ]
    hostile = trajectory(entry.task_id, question=ATTACK, final_answer=ATTACK, turns=turns, success=1.0)
    return hostile.model_copy(update={"errors": (ATTACK,)})


def test_the_report_is_one_file_that_loads_nothing(page: _Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not {"src", "href", "srcset", "action"} & attributes.keys(), tag
    policies = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1 and str(policies[0]).startswith("default-src 'none';")


def test_the_verdicts_and_the_numbers_are_on_the_page(page: _Page) -> None:
    # 48 tasks: a third succeed before; afterwards all but those with index % 8 == 5, which are 6.
    for text in ("33.3% →", "87.5%", "+54.2 points", "random rewards", "Verdicts", "KL bounded"):
        assert text in page.text, text
    assert page.text.count("✓ pass") == 8
    assert "Sampled, temperature 1" in page.text
    assert "quickstart --seed 3" in page.text and "9f2c1e" in page.text


def test_trajectories_show_calls_results_terms_and_nonces_before_and_after(page: _Page) -> None:
    assert "Before training" in page.text and "After training" in page.text
    for text in ("polygon.get_aggs(ticker=", '{"close": 179.66}', "nonce n-4f1c", "sequence_exact"):
        assert text in page.text, text
    # Learned (3), still failing, got worse: a reader sees failures too.
    assert page.text.count("✗ failure") > 3


def test_what_the_calls_of_each_tool_came_to_is_on_the_page(page: _Page) -> None:
    # Percentiles are within 2.5 %: 10 ms of 1,200 calls of which one took 3 s, 20 ms of 3.
    for tool, calls, p50_ms, errors in (
        ("get_aggs", "1,200", 10.0, "1 timeout"),
        ("get_news", "4", 20.0, "3 tool_error, 1 crashed"),
    ):
        row = re.search(rf"polygon\.{tool}{calls}(\d+\.\d)(\d+\.\d){errors}0002", page.text)
        assert row is not None, tool
        assert all(float(shown) == pytest.approx(p50_ms, rel=0.03) for shown in row.groups())


def test_what_went_wrong_and_where_is_on_the_page_with_an_example(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    tasks, episodes = [CASES["wrong_arguments"][0]], [CASES["wrong_arguments"][1]]
    tasks.append(task("<b>", tool_sequence=[], abstain=True))
    episodes.append(failed(RIGHT, name="<b>"))
    result = summarise(episodes).with_provenance({}, breakdown=break_down(tasks, episodes))
    (run / "eval" / "trained.json").write_text(result.model_dump_json())
    page = _Page(write_report(run).read_text(encoding="utf-8"))
    for text in ("What went wrong", "wrong arguments", "called the right tool with other arguments", "<b>-0"):
        assert text in page.text, text
    assert "Where it succeeds" in page.text and "polygon" in page.text
    assert "How it calls" in page.text and "abstention recall" in page.text


def test_slices_are_compared_only_if_there_is_something_before() -> None:
    tasks, episodes = [CASES["wrong_arguments"][0]], [CASES["wrong_arguments"][1]]
    tasks.append(task("b", tool_sequence=[], abstain=True))
    episodes.append(failed(RIGHT, name="b"))
    breakdown = break_down(tasks, episodes)
    for before, ends in ((None, ["*Success"]), (breakdown, ["*Before", "*After", "*Change"])):
        (table,) = [t for t in breakdown_tables(breakdown, before) if t.title == "Where it succeeds"]
        assert table.columns == ("By", "Part", *ends, "*Tasks")
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_one_episode_before_and_after_comes_before_all_verdicts_and_tables(page: _Page) -> None:
    at = [page.text.index(text) for text in ("One episode, before and after", "✗ failure", "Verdicts")]
    assert at == sorted(at)
    assert page.text.index("Verdicts") < page.text.index("More episodes, before and after")


def test_the_title_names_what_was_trained_the_servers_and_the_date(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    servers = dict.fromkeys("abcdef", "1")
    facts = {"created_at": "2026-11-29T06:42:43+00:00", "server_versions": servers}
    (run / "manifest.json").write_text(json.dumps(facts))
    (run / "config.yaml").write_text("model:\n  name: Qwen/Qwen3-0.6B\n")
    title = document_of(read_run(run)).title
    assert title == "run: Qwen3-0.6B on a, b, c, d and 3 more servers, 2026-11-29"  # polygon is the third
    (run / "manifest.json").write_text(json.dumps({"title": "mine"}))
    assert document_of(read_run(run)).title == "mine on polygon"


def test_the_worst_part_comes_first_with_before_and_after_and_its_loss_in_colour(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for name, lost in (("warm_start", ()), ("trained", ("y-0", "y-1"))):
        names = [f"{kind}-{i}" for kind in ("x", "y") for i in range(2)]
        tasks = [task(each).model_copy(update={"extra_info": {"class": each[0]}}) for each in names]
        episodes = [failed(RIGHT, name=each, success=float(each not in lost)) for each in names]
        told = summarise(episodes).with_provenance({}, breakdown=break_down(tasks, episodes))
        (run / "eval" / f"{name}.json").write_text(told.model_dump_json())
    html = write_report(run).read_text(encoding="utf-8")
    rows = re.findall(r'<th data-label="By">class</th><td data-label="Part">(\w)</td>(.*)</tr>', html)
    assert [part for part, _ in rows] == ["y", "x"]
    assert 'class="num lost">−100.0<' in rows[0][1] and "lost" not in rows[1][1]


def test_rows_and_curves_of_zeros_are_named_and_not_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{**step, "clip_fraction": 0.0, "approx_kl": 1e-13, "reward_excess": 0.0} for step in steps]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = _Page(write_report(run).read_text())
    assert "Below a millionth at every step: KL of one update, Clip fraction" in page.text
    drawn = {str(attributes.get("id")) for _, attributes in page.elements}
    assert "chart-kl" in drawn and not {"chart-clip", "chart-update"} & drawn
    assert "Zero, and left out: Invalid calls" in page.text
    assert "Zero, and left out: excess." in page.text


def test_every_reward_term_is_explained() -> None:
    assert set(TERM_NAMES) <= TERMS.keys()


def test_text_of_a_trajectory_cannot_become_markup(tmp_path: Path) -> None:
    quiet = _Page(write_report(write_run(tmp_path / "quiet", tasks=6)).read_text())
    hostile = write_run(tmp_path / "attacked", tasks=6, hook=_attacked)
    attacked = _Page(write_report(hostile).read_text())
    assert ATTACK in attacked.text  # shown to the reader as text
    assert attacked.count("script") == quiet.count("script") == 5
    assert attacked.count("img") == 0


def test_a_manifest_or_control_cannot_become_markup(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    (run / "manifest.json").write_text(
        json.dumps({"title": ATTACK, "about": ATTACK, "deep": {ATTACK: ATTACK}})
    )
    (run / "eval" / "controls.json").write_text(json.dumps([{"name": ATTACK, "what": ATTACK}]))
    (run / "config.yaml").write_text(f"# {ATTACK}\nseed: 1\n")
    attacked = _Page(write_report(run).read_text())
    assert (attacked.count("script"), attacked.count("img")) == (5, 0)


def test_a_figure_cannot_end_its_script_element() -> None:
    text = script_json({"title": ATTACK})
    assert "<" not in text
    assert json.loads(text) == {"title": ATTACK}


def test_plotly_is_packed_once_and_whole(tmp_path: Path) -> None:
    from plotly.offline import get_plotlyjs

    html = write_report(write_run(tmp_path / "run", tasks=3)).read_text()
    packed = re.findall(r'data-encoding="gzip\+base64">([^<]+)</script>', html)
    assert len(packed) == 1
    assert gzip.decompress(base64.b64decode(packed[0])).decode() == get_plotlyjs()
    assert len(html) < 2_500_000


def test_a_run_with_nothing_but_steps_still_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward_mean": 0.1, "kl": null}\n')
    page = _Page(write_report(tmp_path).read_text())
    assert page.text.count("– not measured") == 8 and "None" not in page.text
    assert "Trajectories" not in page.text and "Controls" not in page.text


def test_an_evaluation_without_its_before_side_stands_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    episodes = [trajectory(f"t{i}", success=float(i < 9)) for i in range(10)]
    write_evaluation(tmp_path, "trained", episodes, temperature=0.0)
    write_evaluation(tmp_path, "other_model", episodes, temperature=0.0)
    page = _Page(write_report(tmp_path).read_text())
    assert "90.0%" in page.text and "other_model" in page.text
    assert "Before training" not in page.text and "Trajectories" not in page.text


def test_a_line_without_a_step_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"reward_mean": 0.4}\n')
    with pytest.raises(UserError, match="step") as error:
        write_report(tmp_path)
    assert (error.value.where or "").endswith("metrics.jsonl")


def test_a_step_that_was_trained_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    lines = ['{"step": 1, "kl": 0.1}', '{"step": 2, "kl": 0.9}', '{"step": 2, "kl": 0.2}', ""]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_run(tmp_path).series("kl") == [0.1, 0.2]


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "eval/trained.json", "eval/controls.json", "config.yaml"],
)
def test_a_broken_file_of_the_run_is_named_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", tasks=3)
    (run / name).write_text('{"metrics": [')
    with pytest.raises(UserError) as error:
        write_report(run)
    assert (error.value.where or "").removesuffix(":1").endswith(name)  # YAML has a line
    assert not (run / "report.html").exists()


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


@pytest.mark.system
def test_the_command_prints_the_path_and_with_json_the_verdicts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=24)
    plain = mcpagent("report", str(run))
    assert (plain.returncode, plain.stdout.strip()) == (0, str(run / "report.html"))
    document = json.loads(mcpagent("report", str(run), "--json").stdout)
    assert document["report"] == str(run / "report.html")
    assert {v["outcome"] for v in document["verdicts"]} == {"pass"}


@pytest.mark.slow
def test_a_reader_filters_episodes_and_opens_one_in_both_themes(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run", hook=_attacked))
    with chromium(tmp_path / "profile") as browser:
        browser.open(path.as_uri())
        browser.wait("document.querySelectorAll('.js-plotly-plot').length === 11")
        browser.wait("!document.getElementById('episodes').hidden")
        count = "document.getElementById('episode-count').textContent"
        # 48 tasks, before and after, once greedy and four times sampled.
        assert str(browser.value(count)).startswith("480 of 480 episodes")
        browser.value(_set("outcome", "failure"))
        failures = str(browser.value(count))
        assert failures.endswith("of 480 episodes, 0 of them successes") and not failures.startswith("480")
        browser.value(_set("source", "eval_warm_start"))
        assert str(browser.value(count)).startswith("32 of 480")  # two thirds fail before training
        browser.value(_set("task", "OUT-017"))
        assert str(browser.value(count)).startswith("1 of 480")
        browser.value(_set("task", "") + _set("text", "stock number 17 "))
        assert str(browser.value(count)).startswith("1 of 480")
        browser.value("document.querySelector('#episode-list details').open = true")
        browser.wait("document.querySelector('#episode-list .turn pre.call')")
        opened = str(browser.value("document.querySelector('#episode-list .opened').textContent"))
        assert "held-out-017" in opened and "polygon.get_aggs(ticker=" in opened
        paper = "getComputedStyle(document.body).backgroundColor"
        browser.theme("light")
        light = browser.value(paper)
        browser.theme("dark")
        assert browser.value(paper) != light
        # What a hostile episode holds is text when it is opened, too.
        browser.value(_set("source", "eval_trained") + _set("outcome", "") + _set("text", ""))
        browser.value("document.querySelector('#episode-list details').open = true")
        browser.wait("document.querySelector('#episode-list .turn pre.call')")
        opened = str(browser.value("document.querySelector('#episode-list .opened').textContent"))
        assert ATTACK in opened and browser.value("document.title") != "owned"
        assert (browser.errors, browser.requests) == ([], [path.as_uri()])


@pytest.mark.slow
def test_no_table_is_cut_and_no_page_scrolls_sideways_at_any_width(tmp_path: Path) -> None:
    """Long names of kinds and settings included."""
    run = write_run(tmp_path / "run")
    tasks, episodes = [CASES["wrong_arguments"][0]], [CASES["wrong_arguments"][1]]
    result = summarise(episodes).with_provenance({}, breakdown=break_down(tasks, episodes))
    (run / "eval" / "trained.json").write_text(result.model_dump_json())
    (run / "config.yaml").write_text(f"{'long_key_' * 9}: /{'very/long/path/' * 12}\nseed: 1\n")
    # Wider than its card, or with text that reaches its edge.
    cut = (
        "[...document.querySelectorAll('.scroll')].filter(card => card.scrollWidth > card.clientWidth)"
        ".map(card => card.textContent.slice(0, 60))"
    )
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with chromium(tmp_path / "profile") as browser:
        page = write_report(run)
        for width in (1400, 1110, 1024, 910, 800, 400):
            browser.open(page.as_uri(), width=width)
            browser.wait("document.body.dataset.drawn")
            assert (browser.value(cut), browser.value(sideways)) == ([], 0), width
        assert browser.errors == []


def _set(name: str, value: str) -> str:
    return (
        f"(() => {{ const control = document.querySelector('[data-filter={name}]'); "
        f"control.value = {json.dumps(value)}; control.dispatchEvent(new Event('input')); }})();"
    )


def test_each_gold_call_says_whether_it_was_made() -> None:
    """As the reward matches them: a reference is resolved, an acceptable set is accepted."""
    plan = [
        {"step": 1, "server": "polygon", "tool": "get_aggs", "params": {"ticker": "AAPL", "date": "d1"}},
        {
            "step": 2,
            "server": "polygon",
            "tool": "get_aggs",
            "params": {"ticker": "AAPL", "date": "${step1.close}"},
            "match": {"ticker": {"any_of": ["AAPL", "apple"]}},
        },
        {"step": 3, "server": "polygon", "tool": "get_news", "params": {"ticker": "AAPL"}},
    ]
    gold = task("t", tool_sequence=plan)
    first = turn(0, "a", calls=[call(0, ticker="AAPL", date="d1")], results=[result(0, '{"close": 7}')])
    made = call(1, ticker="apple", date="<i>8", more=True)
    episode = trajectory("t", success=0.0, turns=[first, turn(1, "b", calls=[made], results=[result(1)])])
    assert [each.outcome for each in gold_calls(gold, episode)] == ["exact", "called", "missing"]
    html = episode_html(episode, label="here", task=gold)
    for text in ("✓ made", "✗ other arguments", "✗ not made"):
        assert text in html, text
    assert "<i>" not in html
    none = task("n", tool_sequence=[], abstain=True)
    assert "no call is right" in episode_html(trajectory("n"), label="here", task=none)
    cannot = task("n", tool_sequence=[], final_answer={"type": "none"}, answer_line=True)
    assert "no tool can tell" in episode_html(trajectory("n"), label="here", task=cannot)


def test_what_a_judge_said_of_an_episode_is_shown() -> None:
    facts = {"model": "gpt<1>", "identity": "j", "question_sha256": "q"}
    said = Judgement(**facts, answer="<i>it greets</i>", verdict=True)
    episode = trajectory("t", success=None)
    assert "Judge" not in episode_html(episode, label="here", task=None)
    html = episode_html(episode.model_copy(update={"judgement": said}), label="here", task=None)
    assert "Judge gpt&lt;1&gt;: success" in html and "<pre>&lt;i&gt;it greets&lt;/i&gt;</pre>" in html
    late = said.model_copy(update={"answer": None, "verdict": None, "fault": "late"})
    html = episode_html(episode.model_copy(update={"judgement": late}), label="here", task=None)
    assert "Judge gpt&lt;1&gt;: no verdict" in html and '<pre class="error">late</pre>' in html


def test_the_cost_of_training_says_the_length_of_an_episode_where_steps_told_it() -> None:
    cost = Cost(steps=2, episodes=40, tokens=980, tool_calls=5, cpu_s=7.4, rollout_cpu_s=5, update_cpu_s=2)
    # 980 / 40 = 24.5, to the even one
    assert cost_text(cost) == "40 episodes of 24 sampled tokens, 7 CPU seconds"
    assert cost_text(cost.model_copy(update={"tokens": 0})) == "40 episodes, 7 CPU seconds"
