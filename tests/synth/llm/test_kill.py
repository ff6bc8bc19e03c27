"""The generator killed at random points: nothing lost, nothing paid for twice."""

from pathlib import Path
from random import Random

import pytest

from tests.llm.service import API_KEY, Answer, Received, service
from tests.synth.llm.model import model
from tests.synth.llm.running import JOURNAL, answered, generate, journal, start, written

pytestmark = pytest.mark.system

OPTIONS = ("--n-samples", "20", "--set", "api.max_in_flight=6", "--seed", "5")
IN_FLIGHT = 6


def model_that_breaks(received: Received) -> Answer:
    """The scripted model; where it would hang until the deadline of the request it closes the connection."""
    answer = model(received)
    return Answer(breaks=True) if answer.hangs else answer


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_generator_killed_at_random_points_ends_with_the_same_bytes_and_repeats_no_finished_request(
    tmp_path: Path, kills: int
) -> None:
    with service(model_that_breaks) as unbroken:
        whole = generate(unbroken.url, tmp_path / "whole", *OPTIONS)
    total = len(unbroken.log)
    rng = Random(11)
    points = sorted(rng.sample(range(1, total), kills))  # requests received in all when the kill comes
    out = tmp_path / "killed"
    finished_at: list[tuple[int, set[str]]] = []
    begun_anew = 0  # failed attempts at what a kill left open: it gets all its attempts again
    with service(model_that_breaks) as running:
        for point in points:
            process = start(running.url, out, *OPTIONS)
            running.wait_for(point, process)
            process.kill()
            process.communicate()
            assert process.returncode == -9
            finished_at.append((len(running.log), set(answered(out))))
            over = {line["key"] for line in journal(out) if line["kind"] in ("answered", "gave_up")}
            begun_anew += sum(line["kind"] == "failed" and line["key"] not in over for line in journal(out))
            assert not written(out)
        resumed = generate(running.url, out, *OPTIONS)

    assert written(out) == written(tmp_path / "whole")
    assert sum(map(len, written(out).values())) > 5_000
    for name in ("records", "stages", "rejects", "attempts", "repaired", "catalog_hash"):
        assert resumed[name] == whole[name], name
    # The service's own log: what was on disk at a kill never came again.
    assert [len(finished) for _, finished in finished_at][-1] > 0
    for received_by_then, finished in finished_at:
        later = {received.key for received in running.received[received_by_then:]}
        assert not later & finished
    assert len(answered(out)) == len(set(answered(out))) == len(answered(tmp_path / "whole"))
    # Only what was in flight or open at a kill was sent again, and the meter has counted all of it.
    assert len(running.log) <= total + kills * IN_FLIGHT + begun_anew
    assert len(running.log) <= resumed["spend"]["requests"] <= len(running.log) + kills * IN_FLIGHT
    assert resumed["spend"]["input_tokens"] == whole["spend"]["input_tokens"]
    assert resumed["spend"]["answers_from_journal"] == len(finished_at[-1][1])


def test_a_run_that_is_over_is_repeated_from_its_journal_without_a_request(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with service(model) as running:
        first = generate(running.url, out, "--n-samples", "8")
        bytes_then, asked = written(out), len(running.log)
        again = generate(running.url, out, "--n-samples", "8", "--overwrite")
        assert len(running.log) == asked
        assert written(out) == bytes_then
        assert again["executed_calls"] == 0  # the tools were not asked again either
        more = generate(running.url, out, "--n-samples", "10", "--overwrite")
    assert again["stages"] == first["stages"]
    assert more["samples"] == 10
    assert not {r.key for r in running.received[:asked]} & {r.key for r in running.received[asked:]}


def test_a_line_that_a_kill_cut_off_is_dropped_and_asked_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with service(model) as running:
        generate(running.url, out, "--n-samples", "4")
        whole, path = written(out), out / JOURNAL
        lines = path.read_bytes().splitlines(keepends=True)
        last = max(n for n, line in enumerate(lines) if b'"answered"' in line)
        path.write_bytes(b"".join(lines[:last]) + lines[last][:40])
        asked = len(running.log)
        again = generate(running.url, out, "--n-samples", "4", "--overwrite")
    assert written(out) == whole
    assert len(running.log) == asked + 1
    assert again["spend"]["requests"] == asked + 1
    assert again["spend"]["uncertain_requests"] == 1  # the answer that was lost may have been paid for


def test_no_key_is_written_anywhere(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with service(model) as running:  # sample 14 is told the key in an error
        generate(running.url, out, "--n-samples", "16")
    assert all(received.authorization == f"Bearer {API_KEY}" for received in running.received)
    assert any("oh [OPENAI_API_KEY]" in str(line) for line in journal(out))
    for path in out.rglob("*"):
        assert API_KEY.encode() not in path.read_bytes(), path
