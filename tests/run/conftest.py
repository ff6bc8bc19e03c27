from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.certified import Honest, make_certificate, make_run


@pytest.fixture(scope="session")
def honest(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Honest:
    """A run and its certificate, which no test may change."""
    place = tmp_path_factory.mktemp("certified")
    run = make_run(tiny_checkpoint, place)
    make_certificate(run, place / "certificate")
    return Honest(run=run, folder=place / "certificate", data=place / "data")
