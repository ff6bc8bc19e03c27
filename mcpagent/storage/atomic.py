"""Files and folders that appear under their name only when they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def atomic_file(final: Path) -> Iterator[Path]:
    """Yields the path to write to; a normal exit moves it to `final`, an exception leaves `final` as it was.

    The folder of `final` is made where it is missing.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(final)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_dir(final: Path) -> Iterator[Path]:
    """Like `atomic_file` for a folder; an older folder of that name is replaced."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(final)
    temporary.mkdir()
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        if final.exists():
            # A folder cannot be replaced in one step: the old one gives up its name first.
            replaced = final.with_name(f"{temporary.name}-replaced")
            final.replace(replaced)
            temporary.replace(final)
            shutil.rmtree(replaced)
        else:
            temporary.replace(final)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def write_text(final: Path, text: str) -> None:
    """Write a whole UTF-8 file atomically."""
    with atomic_file(final) as path:
        path.write_text(text, encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written directly in `folder`."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _temporary(final: Path) -> Path:
    return final.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{final.name}")


def _sync(path: Path) -> None:
    # Renaming may reach the disk before the contents do; then a power cut leaves an empty file.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
