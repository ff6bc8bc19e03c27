"""`mcpagent doctor`: everything that a run needs from this machine, each failure with what fixes it."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from mcpagent.checks import FAIL, PASS, SKIP, WARN, result
from mcpagent.checks.servers import ListedServer, list_servers
from mcpagent.config.environment import environment
from mcpagent.console import counted
from mcpagent.core.records import CheckResult, CheckStatus, JsonObject
from mcpagent.core.tools import ToolSpec, catalog_hash, chat_schema, model_names
from mcpagent.errors import UserError
from mcpagent.servers.names import BUILTIN_NAMES, KEY_NAMES
from mcpagent.servers.provider import builtin_servers
from mcpagent.servers.sandbox.choose import choose_sandbox
from mcpagent.servers.sandbox.contract import SandboxKind
from mcpagent.storage.checkpoints import find_model
from mcpagent.storage.packages import installed_version, pip_install, require, requirements
from mcpagent.tools.clients import CLIENTS, client_file
from mcpagent.tools.servers_config import ServerConfig, StdioServer, load_servers, server_names

if TYPE_CHECKING:  # it takes jinja2, which a base installation has not
    from mcpagent.models.tokens import Renderer


def check_model(name: str, *, tool_format: str, catalog: Sequence[ToolSpec]) -> list[CheckResult]:
    """Check the tokens of a model as a run does before it begins, and how much a full rendering would differ.
    The first failure ends it: nothing after it can be told."""
    checks: list[CheckResult] = []
    try:
        require("hf", use="checking a model")
        from mcpagent.env.tool_format import gold_conversation, open_renderer
        from mcpagent.models.load import load_config, load_tokenizer
        from mcpagent.models.logits import logit_transform
        from mcpagent.models.tokens import measure_drift, refuse_forgery
        from mcpagent.models.weights import holds_weights

        checkpoint = find_model(name)
        place = name if checkpoint is None else str(checkpoint.path)
        tokenizer: Any = load_tokenizer(place)
        why = f" ({checkpoint.why})" if checkpoint is not None and checkpoint.why else ""
        checks.append(result("model tokenizer", PASS, f"{place}{why}: {len(tokenizer)} tokens"))
        renderer = open_renderer(tokenizer, name=name, tool_format=tool_format)
        how = "in the system message" if renderer.instruction is not None else "by its template"
        forged = f"{refuse_forgery(renderer)} control tokens stay text in what tools say"
        checks += [
            result("model template", PASS, "what follows a turn does not depend on the turns before it"),
            result(
                "model tool calls", PASS, f"{renderer.tool_format}, taught {how}; a call reads back as it was"
            ),
            result("model injection", PASS, forged),
        ]
        if tool_format == "auto" and (folder := Path(place)).is_dir() and holds_weights(folder):
            checks.append(_measured(tokenizer, place, name=name))
        schemas = [chat_schema(name, tool) for name, tool in model_names(catalog).items()]
        checks += [_written(renderer.tool_format, catalog), _shown(renderer, schemas)] if schemas else []
        drift = measure_drift(renderer, *gold_conversation(renderer, schemas))
        # Not a failure: what was sampled is kept and trained on. But a server that is sent messages renders
        # each request anew, and then the model reads other tokens than it was trained on.
        serving = "serve the trained model from token ids, or with a template that keeps earlier thoughts"
        counts = f"{drift.changed} of {drift.kept} tokens ({drift.share:.1%}) of three turns"
        detail = f"{counts} are not what its whole rendering gives"
        checks.append(result("model drift", WARN if drift.changed else PASS, detail, serving))
        after_head = logit_transform(load_config(place))
        checks.append(result("model logits", PASS, f"the output head's, {after_head or 'unchanged'}"))
    except UserError as error:
        checks.append(result("model", FAIL, error.message, error.remedy))
    return checks


def _written(tool_format: str, catalog: Sequence[ToolSpec]) -> CheckResult:
    """Check that calls with the parameters of all tools would be read as they are written."""
    from mcpagent.env.parsing import unwritable

    bad = {tool.dotted: names for tool in catalog if (names := unwritable(tool.input_schema, tool_format))}
    if not bad:
        detail = f"{tool_format} can write each parameter of {counted(len(catalog), 'tool')}"
        return result("model names", PASS, detail)
    listed = "; ".join(f"{', '.join(map(repr, names))} of {tool}" for tool, names in bad.items())
    remedy = "--set rollout.tool_format=hermes writes any name; tools.allow_list leaves tools out"
    return result("model names", FAIL, f"{tool_format} cannot write {listed}", remedy)


def _shown(renderer: Renderer, schemas: Sequence[JsonObject]) -> CheckResult:
    """Compare what the prompt names of each tool with what its schema has."""
    from mcpagent.models.chat_template import left_out

    name = "model schemas"
    if renderer.instruction is not None or not renderer.has_tools:
        return result(name, PASS, "the system message has each schema as it is")
    told: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    for schema in schemas:
        tool = schema["function"]["name"]
        told[tool], lost[tool] = left_out(renderer.tokenizer, schema, name=renderer.name)
    for names, status, what in (
        (lost, FAIL, "the prompt does not name"),
        (told, PASS, "the template leaves out what the descriptions tell instead:"),
    ):
        listed = "; ".join(f"{', '.join(each)} of {tool}" for tool, each in names.items() if each)
        if listed:
            remedy = "--set rollout.tool_format=json teaches the schemas in the system message"
            return result(name, status, f"{what} {listed}", remedy)
    return result(name, PASS, f"the prompt names each parameter of {counted(len(schemas), 'tool')}")


def _measured(tokenizer: Any, place: str, *, name: str) -> CheckResult:
    """Measure how easily the model begins a call of each format, and how many of its greedy turns hold
    one."""
    import torch

    from mcpagent.env.parsing import parse_action
    from mcpagent.env.tool_format import QUESTIONS, measured_format, open_renderer
    from mcpagent.models.load import load_config, load_model, resolve_device, resolve_dtype
    from mcpagent.models.logits import continuation_logprobs

    device = resolve_device("auto")
    width = getattr(load_config(place).get_text_config(), "hidden_size", 0)
    model = load_model(place, dtype=resolve_dtype("auto", device, width=width), device=device)
    choice = measured_format(tokenizer, name=name, score=partial(continuation_logprobs, model))
    renderer, parsed = open_renderer(tokenizer, name=name, tool_format=choice.tool_format), 0
    for question, tool in QUESTIONS:
        prompt = renderer.prompt_ids([{"role": "user", "content": question}], [chat_schema(tool.name, tool)])
        ids = torch.tensor([prompt], device=device)
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=_SAMPLED_TOKENS, do_sample=False
        )
        action = renderer.decode(written[0, len(prompt) :].tolist())
        parsed += bool(parse_action(action, tool_format=choice.tool_format).calls)
    shown = ", ".join(f"{each} at e^{logprob:.1f}" for each, logprob in choice.openings.items())
    detail = f"{choice.tool_format} ({shown}); {parsed} of {len(QUESTIONS)} greedy turns hold a call"
    return result(
        "model can call",
        PASS if choice.why is None and parsed else WARN,
        detail if choice.why is None else f"{choice.why}. {detail}",
        "before GRPO teach it the format from demonstrations: mcpagent train --algo sft",
    )


_SAMPLED_TOKENS = 64  # of a turn that is to hold a call
_LITTLE_MEMORY_GB = 2.0  # the peak of `mcpagent quickstart`
_LITTLE_DISK_GB = 2.0
_NO_DISK_GB = 0.2


# Extras: what needs them, and how bad it is to lack one.
EXTRAS = {
    "hf": ("train, quickstart and eval need it", FAIL),
    "report": ("quickstart and report need it", FAIL),
    "gym": ("env check with SkyRL needs it", SKIP),
    "vllm": ("optional: faster rollouts on a GPU", SKIP),
}


def check_python() -> CheckResult:
    """Check Python against what the installed mcpagent asks for."""
    version = platform.python_version()
    supported = SpecifierSet(metadata.metadata("mcpagent")["Requires-Python"])
    shown = f"{version} at {sys.executable}"
    if supported.contains(version, prereleases=True):
        return result("python", PASS, shown)
    return result("python", FAIL, f"{shown}; mcpagent needs {supported}", "python3.11 -m venv .venv")


def check_packages() -> list[CheckResult]:
    """Check the base packages and each extra against the ranges in mcpagent's metadata."""
    base = check_group("packages", requirements(), use="every command needs them", missing=FAIL)
    extras = [
        check_group(f"extra {name}", requirements(name), use=use, missing=missing)
        for name, (use, missing) in EXTRAS.items()
    ]
    return [base, *extras]


def check_device() -> CheckResult:
    """Say where models would run, with what is free of its memory."""
    if installed_version("torch") is None or installed_version("psutil") is None:
        return result("device", SKIP, "not known without the extra hf")
    import psutil
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free_gb = psutil.virtual_memory().available / 1e9
    machine = f"cpu, {cores} cores, {free_gb:.1f} GB of memory free"
    if torch.cuda.is_available():
        cards = [_cuda_card(index) for index in range(torch.cuda.device_count())]
        return result("device", PASS, f"{'; '.join(cards)}; {machine}")
    if torch.backends.mps.is_available():
        machine = f"mps; {machine}"
    if free_gb >= _LITTLE_MEMORY_GB:
        return result("device", PASS, machine)
    needs = f"quickstart needs {_LITTLE_MEMORY_GB:.0f} GB"
    return result("device", WARN, f"{machine}; {needs}", "ps aux | sort -nrk 6 | head")


def check_keys(servers: Collection[str] = BUILTIN_NAMES) -> list[CheckResult]:
    """Say which API keys of the servers are set, in the environment or in `.env`; a value is never shown."""
    variables = environment()
    checks: list[CheckResult] = []
    for service, names in KEY_NAMES.items():
        if service not in servers:
            continue
        variable = next((name for name in names if variables.get(name)), None)
        missing = f"{' / '.join(names)} not set; the embedded data need none"
        status, detail = (SKIP, missing) if variable is None else (PASS, f"{variable} is set")
        checks.append(result(f"key {service}", status, detail))
    return checks


def check_outputs(folder: Path) -> CheckResult:
    """Check that runs can be written to `folder`, which need not exist yet, and how much room there is."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        moved = shlex.join(["mv", str(existing), f"{existing}.old"])
        return result("outputs", FAIL, f"{existing} is a file, but runs need a folder there", moved)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        denied = f"cannot write to {existing}: {error.strerror}"
        return result("outputs", FAIL, denied, f"chmod u+w {shlex.quote(str(existing))}")
    free_gb = shutil.disk_usage(existing).free / 1e9
    status = FAIL if free_gb < _NO_DISK_GB else WARN if free_gb < _LITTLE_DISK_GB else PASS
    detail = f"{folder} can be written, {free_gb:.1f} GB free"
    return result("outputs", status, detail, f"du -sh {shlex.quote(str(folder))}/*")


def check_group(name: str, group: Sequence[Requirement], *, use: str, missing: CheckStatus) -> CheckResult:
    """Check the packages of a group; `use` is what needs them, `missing` how bad it is to lack one."""
    if not group:
        return result(name, SKIP, f"not for this platform ({use})")
    versions = {requirement.name: installed_version(requirement.name) for requirement in group}
    absent = [r for r in group if versions[r.name] is None]
    wrong = [r for r in group if (v := versions[r.name]) and not r.specifier.contains(v, prereleases=True)]
    shown = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    if not absent and not wrong:
        return result(name, PASS, shown)
    problems = [f"{r.name} is not installed" for r in absent]
    problems += [f"{r.name} {versions[r.name]} is not {r.specifier}" for r in wrong]
    remedy = pip_install(*(f"{r.name}{r.specifier}" for r in (*absent, *wrong)))
    return result(name, FAIL if wrong else missing, f"{', '.join(problems)} ({use})", remedy)


def _cuda_card(index: int) -> str:
    from torch import cuda

    free, total = cuda.mem_get_info(index)
    return f"cuda:{index} {cuda.get_device_name(index)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"


def doctor(
    *,
    servers: Path | None = None,
    model: str | None = None,
    tool_format: str = "auto",
) -> list[CheckResult]:
    """Check everything and return the results in a fixed order.

    `servers` is an mcp.json (None: the built-in servers), `model` a hub id or folder whose tokens are to be
    checked with the tools of the servers, `tool_format` the dialect in which it is to call them. Raises
    UserError only if there is no such mcp.json.
    """
    if servers is not None and not servers.is_file():
        raise UserError("there is no such file", where=str(servers))
    started = check_servers(servers)
    return [
        check_python(),
        *check_packages(),
        check_device(),
        *started.checks,
        *(check_clients() if servers is None else ()),
        check_sandbox(),
        *check_keys(started.names),
        check_outputs(Path("outputs")),
        *([] if model is None else check_model(model, tool_format=tool_format, catalog=started.tools or ())),
    ]


def check_clients() -> list[CheckResult]:
    """Say which MCP clients keep servers in a file that `--servers NAME` takes."""
    return [
        result(f"client {client}", PASS, f"{counted(len(names), 'server')} in {file}: --servers {client}")
        for client in CLIENTS
        if (file := client_file(client)) and (names := server_names(file))
    ]


def check_sandbox() -> CheckResult:
    """Say where the python server runs code, and what to install for a better place."""
    try:
        choice = choose_sandbox(SandboxKind.AUTO)
    except UserError as error:
        return _failed("sandbox", error, remedy=error.remedy)
    remedy = "apt install bubblewrap" if sys.platform == "linux" else None
    return result("sandbox", WARN if choice.passed_over else PASS, str(choice), remedy)


@dataclass(frozen=True)
class Started:
    """The outcome of starting the servers `names`; `tools` is None if one of them did not start."""

    checks: list[CheckResult]
    tools: list[ToolSpec] | None
    names: Collection[str] = ()


def check_servers(path: Path | None) -> Started:
    """Start the servers of the mcp.json at `path` (None: the built-in ones), each with a check of its own."""
    configs: Sequence[ServerConfig] = builtin_servers(BUILTIN_NAMES, limited=False)
    checks: list[CheckResult] = []
    if path is not None:
        try:
            loaded = load_servers(path)
        except UserError as error:
            return Started([_failed("servers", error, remedy=f"vi {shlex.quote(str(path))}")], None)
        configs = loaded.servers
        detail = "; ".join([f"{path}: {len(configs)} in use", *loaded.notes])
        checks.append(result("servers", PASS, detail))
    notes: dict[str, list[str]] = {config.name: [] for config in configs}
    listed = list_servers(configs, on_note=lambda name, text: notes[name].append(text))
    checks += [
        _started(config, server, notes[config.name]) for config, server in zip(configs, listed, strict=True)
    ]
    is_whole = all(server.error is None for server in listed)
    tools = [spec for server in listed for spec in server.tools] if is_whole else None
    return Started(checks, tools, list(notes))


def _started(config: ServerConfig, server: ListedServer, notes: Sequence[str]) -> CheckResult:
    """Say whether a server started, and with which tools."""
    name = f"server {config.name}"
    if server.error is not None:
        command = config.in_shell if isinstance(config, StdioServer) else None
        return _failed(name, server.error, remedy=command or server.error.remedy)
    if not server.tools:
        return result(name, WARN, "; ".join([f"no tools, in {server.start_s:.1f} s", *notes]))
    catalog = catalog_hash(server.tools)[:12]
    detail = f"{counted(len(server.tools), 'tool')} in {server.start_s:.1f} s, catalog {catalog}"
    return result(name, PASS, "; ".join([detail, *notes]))


def _failed(name: str, error: UserError, *, remedy: str | None) -> CheckResult:
    return result(name, FAIL, f"{error.where}: {error.message}" if error.where else error.message, remedy)
