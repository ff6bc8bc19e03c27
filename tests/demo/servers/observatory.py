"""An observatory: telescopes, instruments, targets, observing runs and observers."""

from __future__ import annotations

import random

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

RANDOM = random.Random(41)
READS = ToolAnnotations(read_only_hint=True)


def _words(text: str) -> list[str]:
    return text.split()


GREEK = _words("Alpha Beta Gamma Delta Epsilon Zeta Theta Kappa Lambda Sigma Tau Omega")
STARS = _words("Lyrae Cygni Draconis Aquilae Orionis Tauri Leonis Pegasi Carinae Hydrae Corvi Velorum")
GIVEN = _words("Amara Bjorn Chiara Dmitri Elif Farid Greta Hiro Ines Jonas Keiko Lars Mei Nadia")
FAMILY = _words("Okonkwo Lindqvist Bianchi Sokolov Demir Haddad Vogel Tanaka Moreira Novak")
TELESCOPES = {
    f"{n}-{i}": {
        "site": RANDOM.choice(["Cerro Alto", "Mauna Roa", "Teide Ridge", "Siding Peak"]),
        "mirror_cm": RANDOM.randint(40, 820),
        "dome": f"D{RANDOM.randint(10, 99)}",
        "operator": None,
    }
    for n in ("Argus", "Boreas", "Cosma", "Doria", "Eos")
    for i in range(1, 9)
}
OBSERVERS = {
    f"{g} {f}": {
        "badge": RANDOM.randint(10000, 99999),
        "institute": f"{f2} Institute",
        "office": f"{RANDOM.choice('NSEW')}{RANDOM.randint(100, 499)}",
    }
    for (g, f), f2 in zip(
        RANDOM.sample([(g, f) for g in GIVEN for f in FAMILY], 48),
        [RANDOM.choice(FAMILY) for _ in range(48)],
        strict=True,
    )
}
for scope in TELESCOPES.values():
    scope["operator"] = RANDOM.choice(list(OBSERVERS))
TARGETS = {
    f"{a} {b}": {
        "magnitude": round(RANDOM.uniform(1, 14), 2),
        "distance_ly": RANDOM.randint(12, 9800),
        "catalogue": f"HD {RANDOM.randint(1000, 99999)}",
        "telescope": RANDOM.choice(list(TELESCOPES)),
    }
    for a, b in RANDOM.sample([(a, b) for a in GREEK for b in STARS], 90)
}
RUNS = {
    f"R{n}": {
        "target": RANDOM.choice(list(TARGETS)),
        "observer": RANDOM.choice(list(OBSERVERS)),
        "exposure_s": RANDOM.randint(20, 3600),
        "filter": RANDOM.choice(["blue", "red", "infrared", "clear"]),
    }
    for n in RANDOM.sample(range(200, 900), 80)
}
server = MCPServer("observatory", log_level="ERROR")


@server.tool(annotations=READS)
def list_telescopes() -> dict[str, object]:
    """Names of all telescopes."""
    return {"telescopes": list(TELESCOPES)}


@server.tool(annotations=READS)
def telescope(name: str) -> dict[str, object]:
    """Site, mirror, dome and operator of a telescope."""
    if name not in TELESCOPES:
        raise ValueError(f"no telescope {name!r}")
    return {"name": name, **TELESCOPES[name]}


@server.tool(annotations=READS)
def list_targets() -> dict[str, object]:
    """Names of all targets."""
    return {"targets": list(TARGETS)}


@server.tool(annotations=READS)
def target(name: str) -> dict[str, object]:
    """Magnitude, distance, catalogue number and telescope of a target star."""
    if name not in TARGETS:
        raise ValueError(f"no target {name!r}")
    return {"name": name, **TARGETS[name]}


@server.tool(annotations=READS)
def observer(name: str) -> dict[str, object]:
    """Badge, institute and office of an observer."""
    if name not in OBSERVERS:
        raise ValueError(f"no observer {name!r}")
    return {"name": name, **OBSERVERS[name]}


@server.tool(annotations=READS)
def observing_run(run_id: str) -> dict[str, object]:
    """Target, observer, exposure and filter of an observing run, by its id."""
    if run_id not in RUNS:
        raise ValueError(f"no run {run_id!r}")
    return {"run_id": run_id, **RUNS[run_id]}


@server.tool(annotations=READS)
def list_runs() -> dict[str, object]:
    """Ids of all observing runs."""
    return {"runs": list(RUNS)}


if __name__ == "__main__":
    server.run("stdio")
