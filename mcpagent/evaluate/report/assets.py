"""The files of a page that are read as text; without jinja2, which a base installation does not have."""

from importlib import resources


def asset(name: str) -> str:
    """Return the text of a file of the page."""
    return resources.files("mcpagent.evaluate").joinpath("assets", name).read_text(encoding="utf-8").strip()
