"""Build the docs site strictly, in build/site, and llms.txt from the same nav: `make docs`.

Pages link to files of the repository, which a site does not have: each such file becomes a page of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from posixpath import relpath
from typing import Any

ROOT = Path(__file__).parents[1]
# Where a page of the repository stands in the site, if not at its own place below docs/.
PLACES = {
    "README.md": "index.md",
    "docs/index.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "AGENTS.md": "agents.md",
    "skills/mcpagent/SKILL.md": "skill.md",
}
_LINK = re.compile(r'(\]\(|(?:src|srcset|href)=")(?!https?:|mailto:|#)([^)#"\s]+)')
_COPIED = {".svg", ".png", ".jpg", ".gif", ".ipynb"}


def places() -> dict[Path, str]:
    """By page of the repository, its place in the site."""
    docs = {path: path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return {**docs, **{ROOT / name: place for name, place in PLACES.items()}}


def collect(pages: Path) -> None:
    """Write every page of the site, and the files that they link to, into a folder."""
    shutil.rmtree(pages, ignore_errors=True)
    waiting, done = list(places()), set[Path]()
    while waiting:
        if (file := waiting.pop()) not in done:
            done.add(file)
            waiting += _write(file, pages)
    (pages / "names.md").write_text(_names(), encoding="utf-8")
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(ROOT / "docs" / name, pages / name)


def _write(file: Path, pages: Path) -> list[Path]:
    """Write the page of a file, or of all files of a folder; return the files that it links to."""
    place = pages / _place(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix in _COPIED:
        shutil.copyfile(file, place)
        return []
    if file.suffix != ".md":
        inside = sorted(path for path in file.rglob("*") if path.is_file() and path.suffix != ".pyc")
        files = inside if file.is_dir() else [file]
        place.write_text(
            "\n".join([f"# {file.relative_to(ROOT)}\n", *map(_listing, files)]), encoding="utf-8"
        )
        return []
    linked = list[Path]()

    def to_place(match: re.Match[str]) -> str:
        linked.append((file.parent / match[2]).resolve())
        return match[1] + relpath(_place(linked[-1]), Path(_place(file)).parent.as_posix())

    place.write_text(_LINK.sub(to_place, file.read_text(encoding="utf-8")), encoding="utf-8")
    return linked


def _place(file: Path) -> str:
    """Return the place of a page, or of the page of a file that is none."""
    name = f"files/{file.relative_to(ROOT).as_posix()}"
    return places().get(file) or (name if file.suffix in {".md", *_COPIED} else f"{name}.md")


def _listing(file: Path) -> str:
    language = {".sbatch": "bash", ".py": "python"}.get(file.suffix, file.suffix[1:])
    text = file.read_text(encoding="utf-8")
    return f"````{language}\n{text.rstrip()}\n````\n"


def _names() -> str:
    """Return the page of the public names, whose text mkdocstrings takes from their docstrings."""
    lines = (ROOT / "mcpagent" / "__init__.pyi").read_text(encoding="utf-8").splitlines()
    names = sorted((line.split()[-1] for line in lines if line.startswith("from ")), key=str.lower)
    blocks = "\n".join(f"::: mcpagent.{name}\n" for name in names)
    head = "# Names\n\nWhat `from mcpagent import NAME` gives; [Python API](api.md) shows them at work.\n"
    return f"{head}\n{blocks}"


def nav_pages(nav: list[Any]) -> Iterator[tuple[str, str, str | None]]:
    """Yield (section, page, its title if that is not its heading) in the order of the nav."""
    for entry in nav:
        for section, pages in entry.items():
            for page in [{section: pages}] if isinstance(pages, str) else pages:
                if isinstance(page, str):
                    yield section, page, None
                else:
                    yield from ((section, place, title) for title, place in page.items())


def index_for_models(project: dict[str, Any], pages: Path) -> str:
    """Return llms.txt: the nav with a link to the Markdown of each page."""
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    for section, entries in groupby(nav_pages(project["nav"]), key=itemgetter(0)):
        lines += ["", f"## {section}", ""]
        for _, page, title in entries:
            heading = (pages / page).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            lines.append(f"- [{title or heading}]({page})")
    return "\n".join([*lines, ""])


def site_project() -> dict[str, Any]:
    """Return what zensical.toml says of the site."""
    with (ROOT / "zensical.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def main() -> int:
    project = site_project()
    pages, site = ROOT / project["docs_dir"], ROOT / project["site_dir"]
    collect(pages)
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT)
    if built.returncode:
        return built.returncode
    for page in pages.rglob("*.md"):
        shutil.copyfile(page, site / page.relative_to(pages))
    (site / "llms.txt").write_text(index_for_models(project, pages), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
