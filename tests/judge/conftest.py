from __future__ import annotations

from pathlib import Path

import pytest

from tests.llm.service import API_KEY


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # no .env
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
