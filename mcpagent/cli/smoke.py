"""`mcpagent smoke`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mcpagent.cli.sampling import Json

if TYPE_CHECKING:
    from mcpagent.console import Console
    from mcpagent.workflows.smoke import SmokeResult

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def smoke(
    backend: Annotated[
        Literal["auto", "hf", "vllm"], typer.Option(help="auto: what would be chosen here.")
    ] = "auto",
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder, a run, or a hub id (downloaded). Default: a small model of random weights."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that what samples is what is trained: sample, swap an adapter, sample again, compare both with
    the trainer.

    Example: mcpagent smoke --backend hf
    """
    from mcpagent.console import Console
    from mcpagent.policy.vllm_choice import require_vllm
    from mcpagent.storage.checkpoints import find_model
    from mcpagent.storage.packages import require

    if model is not None:
        find_model(model)
    if backend == "vllm":
        require_vllm()
    require("hf", use="smoke")
    from mcpagent.workflows.smoke import smoke as run

    console = Console(is_json=as_json)
    result = run(backend=backend, model=model, console=console)
    if as_json:
        console.print_json(result.as_json())
    else:
        _print(result, console)


def _print(result: SmokeResult, console: Console) -> None:
    versions = "  ".join(f"{name} {version}" for name, version in result.versions.items())
    console.say(f"backend    {result.backend} ({result.why})")
    console.say(f"model      {result.model}, {result.dtype} on {result.device}")
    console.say(f"versions   {versions}")
    console.say(f"sampled    {result.sampled_tokens} tokens, {result.tokens_per_cpu_s:.0f} per CPU second")
    for name, proof in (("parity", result.first), ("swapped", result.swapped)):
        console.say(
            f"{name:10} {proof.difference:.1e} nats a token apart from the trainer, at most "
            f"{proof.largest:.1e}, over {proof.tokens} tokens ({proof.cpu_s:.3f} CPU s)"
        )
    console.say("stale      the old adapter was noticed, as it must be")
