"""`logs/run.log` of a run: notes, health findings and warnings, each with its time and step."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from mcpagent.core.hidden_text import printable
from mcpagent.core.redact import SECRETS

# Libraries whose loggers hand nothing on to the root once they are set up.
_OWN_HANDLERS = ("transformers", "huggingface_hub", "vllm")
is_debugging = False  # set by --debug: tracebacks and all messages of libraries


class RunLog(logging.Handler):
    """Appends to the file; `step` is the step that is being made. A disk that is full does not end the run
    here but where it writes what counts."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.DEBUG if is_debugging else logging.WARNING)
        self.path = path
        self.step = 0
        self._latest: logging.LogRecord | None = None

    def write(self, text: str) -> None:
        """One entry; lines after its first are indented."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        clean = printable(SECRETS.text(text)).replace("\n", "\n    ")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(f"{now} step {self.step}: {clean}\n")

    def emit(self, record: logging.LogRecord) -> None:
        if record is self._latest:
            return  # it came by its library's logger and by the root
        self._latest = record
        text = f"{record.levelname.lower()} {record.name}: {record.getMessage()}"
        if is_debugging and record.exc_info and record.exc_info[0] is not None:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        self.write(text)


@contextmanager
def run_log(folder: Path) -> Iterator[RunLog]:
    """The log of the run in `folder`, which gets the warnings of libraries too and what ends the block."""
    log, root = RunLog(folder / "logs" / "run.log"), logging.getLogger()
    level = root.level
    loggers = [root, *map(logging.getLogger, _OWN_HANDLERS)]
    for logger in loggers:
        logger.addHandler(log)
    logging.captureWarnings(True)
    if is_debugging:
        root.setLevel(logging.DEBUG)
    try:
        yield log
    except KeyboardInterrupt:
        log.write("interrupted")
        raise
    except Exception as error:
        trace = traceback.format_exc().rstrip() if is_debugging else f"{type(error).__name__}: {error}"
        log.write(f"failed: {trace}")
        raise
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        for logger in loggers:
            logger.removeHandler(log)
