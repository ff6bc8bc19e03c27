"""A real vLLM server over HTTP, beside one that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from operator import attrgetter
from pathlib import Path

import httpx
import pytest
import torch
from torch import distributed

from mcpagent.core.trajectory import FinishReason
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.errors import RunError, UserError
from mcpagent.policy.canary import Arrival
from mcpagent.policy.vllm.servers import VllmServers
from mcpagent.policy.vllm.worker import EXTENSION
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import Fsdp
from mcpagent.train.weight_sync import vllm_sampler
from tests.train.world import make_learner
from tests.vllm.test_adapters import saved
from tests.vllm.test_weights import prove
from tests.vllm.world import (
    MAX_CONTEXT,
    PARITY,
    STOP,
    ask,
    decode,
    prompts,
    requests,
    tiny_model,
    train_a_little,
    with_adapters,
    worst,
)

START_S = 400.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The model of `tiny_model()` with room for adapters; its URL and process."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    train_tokenizer([], vocab_size=0, catalog_hash="").save_pretrained(folder)  # a server must have one
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "model": folder,
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "max-model-len": MAX_CONTEXT,
        "max-num-seqs": 16,
        "max-num-batched-tokens": 4096,
        "block-size": 32,
        "kv-cache-memory-bytes": 64 << 20,
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
        "worker-extension-cls": EXTENSION,
        "max-lora-rank": 8,
        "max-loras": 2,
    }
    flags = ["--enforce-eager", "--no-enable-chunked-prefill", "--enable-lora", "--disable-log-stats"]
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_it_answers(url, process, log)
        yield url, process
    finally:
        process.terminate()
        process.wait(60)
        with suppress(ProcessLookupError):  # the engine of a server that a test has killed
            os.killpg(process.pid, signal.SIGKILL)


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


@contextmanager
def connected(*urls: str, version: int = -1, max_context: int = MAX_CONTEXT) -> Iterator[VllmServers]:
    own = {"decode": decode, "stop_ids": frozenset({STOP}), "max_context": max_context}
    with closing(VllmServers(urls, **own, version=version)) as policy:
        yield policy


@pytest.fixture
def url(server: tuple[str, subprocess.Popen[bytes]]) -> str:
    return server[0]


@pytest.fixture
def dying() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "tests.vllm.dying_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process
        process.kill()


@torch.no_grad()
def test_adapters_in_shards_are_read_back_as_they_were_gathered_and_sent(url: str, tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, processes = with_adapters(tiny_model()), Processes()
        wrapping = Fsdp(processes, device=torch.device("cpu"))
        scorer = TokenScorer(model)
        wrapping.wrap(scorer)
        learner = make_learner(model, processes=processes, wrapping=wrapping, scorer=scorer)
        with connected(url) as policy:
            engine = vllm_sampler(policy, model, folder=tmp_path, learner=learner)
            assert engine.read_back is not None
            for _ in range(2):
                assert engine.read_back() == Arrival(tensors=42)
                for parameter in filter(attrgetter("requires_grad"), model.parameters()):
                    shard = parameter.to_local()  # of one process: all of it
                    shard.add_(0.05 * torch.randn(shard.shape))
                engine.push()
            policy.load_adapter(tmp_path / "version-0")  # an engine that goes on with what it had first
            assert len(engine.read_back().differing) == 42
    finally:
        distributed.destroy_process_group()


def test_adapters_are_swapped_and_proved_over_http(url: str, tmp_path: Path) -> None:
    model = with_adapters(tiny_model())
    with connected(url) as policy:
        for step in range(5):
            train_a_little(model, seed=step)
            policy.load_adapter(saved(model, tmp_path / str(step)))
            asked = requests(prompts(5), temperature=0.7)
            got = ask(policy, asked)
            assert worst(model, asked, got) < PARITY
            assert {span.version for c in got for span in c.policy_versions} == {step}
            assert prove(model, policy) < 1e-5
        train_a_little(model, seed=9)
        with pytest.raises(RunError, match="does not serve the weights"):
            prove(model, policy)
    assert [
        card["id"] for card in httpx.get(f"{url}/v1/models").json()["data"] if "policy" in card["id"]
    ] == []


def test_overflow_stop_tokens_and_seeds_are_as_in_process(url: str) -> None:
    with connected(url, version=0) as policy:
        full = ask(policy, requests(prompts(1, length=MAX_CONTEXT)))[0]
        assert (full.token_ids, full.finish_reason) == ((), FinishReason.OVERFLOW)
        asked = requests(prompts(12), temperature=2.0, max_new_tokens=120)
        got = ask(policy, asked)
        ended = [c for c in got if c.finish_reason is FinishReason.STOP]
        assert ended and all(c.token_ids[-1] == STOP for c in ended)
        assert worst(tiny_model(), asked, got) < PARITY
        assert [c.token_ids for c in ask(policy, asked)] == [c.token_ids for c in got]


def test_a_whole_checkpoint_is_loaded_and_proved_also_its_tied_head(url: str, tmp_path: Path) -> None:
    model = tiny_model()
    with connected(url) as policy:
        try:
            for step in range(2):
                if step:
                    train_a_little(model, seed=step)
                model.save_pretrained(tmp_path / str(step))
                policy.load_folder(tmp_path / str(step))
                assert prove(model, policy) < 1e-5
                assert policy.version == step
            with pytest.raises(RunError, match=r"answers \d+"):
                policy.load_folder(tmp_path / "nowhere")
        finally:
            tiny_model().save_pretrained(tmp_path / "end")
            policy.load_folder(tmp_path / "end")


def test_the_turns_of_a_server_that_dies_are_played_on_another(
    url: str, dying: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    model = with_adapters(tiny_model())
    train_a_little(model, seed=1)
    with connected(dying[0], url) as policy:
        policy.load_adapter(saved(model, tmp_path / "adapter"))
        asked = requests(prompts(6))
        got = ask(policy, asked)
        assert dying[1].stdout is not None and dying[1].stdout.readline() == "turn\n"  # it was asked
        assert worst(model, asked, got) < PARITY
        assert prove(model, policy) < 1e-5


def test_when_no_server_is_left_the_run_ends_with_their_names(
    dying: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    with connected(dying[0], version=0) as policy:
        with pytest.raises(RunError, match="none of the vLLM servers answers any more") as caught:
            ask(policy, requests(prompts(3)))
        assert dying[0] in str(caught.value)
        dying[1].kill()
        dying[1].wait()
        with pytest.raises(RunError, match="no vLLM server took the new weights"):
            policy.load_adapter(tmp_path)


def test_an_address_without_a_server_is_the_users_error_with_the_command_that_starts_one() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(UserError, match="no vLLM server answers") as caught, connected(nobody):
        pass
    assert "api_server" in str(caught.value.remedy)


def test_a_server_with_too_short_a_context_is_refused(url: str) -> None:
    refused = pytest.raises(UserError, match=f"holds contexts of {MAX_CONTEXT} tokens")
    with refused, connected(url, max_context=MAX_CONTEXT + 1):
        pass


async def test_a_server_that_is_killed_in_a_turn_ends_it_with_an_error(
    server: tuple[str, subprocess.Popen[bytes]],
) -> None:
    """Last of this file: the server is gone afterwards."""
    url, process = server
    with connected(url, version=0) as policy, pytest.raises(RunError, match="none of the vLLM servers"):
        async with asyncio.timeout(60):
            turns = asyncio.create_task(policy.complete(requests(prompts(8), max_new_tokens=150)))
            await asyncio.sleep(0)
            process.kill()
            await turns
