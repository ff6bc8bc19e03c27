"""The docs site: its nav has every page once, every link leads to one, every setting and name is there."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from mcpagent.config.schema import TrainConfig
from tests.house import ROOT

_FENCE = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """docs/build_site.py, which is a script."""
    spec = spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["build_site"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    builder.collect(folder)
    return folder


def test_the_nav_of_the_site_has_every_page_once(builder: ModuleType) -> None:
    in_nav = [page for _, page, _ in builder.nav_pages(builder.site_project()["nav"])]
    assert set(in_nav) == {*builder.places().values(), "names.md"}
    assert len(in_nav) == len(set(in_nav))


def test_every_link_of_the_site_leads_to_one_of_its_pages(pages: Path) -> None:
    texts = {page: _FENCE.sub("", page.read_text()) for page in pages.rglob("*.md")}
    links = [(page, target) for page, text in texts.items() for target in _LINK.findall(text)]
    assert len(links) > 200
    assert [(str(page), target) for page, target in links if not (page.parent / target).is_file()] == []


def test_a_file_that_a_page_links_to_is_a_page_with_its_text(pages: Path) -> None:
    page = (pages / "files" / "configs" / "model.yaml.md").read_text()
    assert (ROOT / "configs" / "model.yaml").read_text().rstrip() in page
    assert "(files/configs/model.yaml.md)" in (pages / "configuration.md").read_text()


def test_the_index_for_models_lists_the_pages_in_the_order_of_the_nav(
    builder: ModuleType, pages: Path
) -> None:
    project = builder.site_project()
    text = builder.index_for_models(project, pages)
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\)$", text, re.MULTILINE)
    assert listed == [page for _, page, _ in builder.nav_pages(project["nav"])]
    assert all((pages / page).is_file() for page in listed)
    assert "## Other trainers\n\n- [Other trainers](bridges.md)\n" in text


def test_the_settings_page_has_every_key_with_its_default() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    sections = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for name, value in TrainConfig().model_dump(mode="json").items():
        if isinstance(value, dict):
            assert re.findall(r"^\| `(\w+)` \|", sections[name], re.MULTILINE) == list(value)
        else:
            assert re.search(rf"^\| `{name}` \|", page, re.MULTILINE), name
    assert "| `group_size` | attempts at each prompt | whole number ≥ 1 | `8` |" in sections["rollout"]


def test_the_names_page_has_every_name_of_the_api(pages: Path) -> None:
    import mcpagent

    named = re.findall(r"^::: mcpagent\.(\w+)$", (pages / "names.md").read_text(), re.MULTILINE)
    public = {name for name in dir(mcpagent) if name in mcpagent._module_of()}
    assert set(named) == public and len(named) == len(public) > 40


def test_no_page_of_the_site_loads_anything_from_elsewhere(builder: ModuleType) -> None:
    project = builder.site_project()
    loaded = [script["path"] for script in project["extra"]["polyfills"]] + project["extra_css"]
    assert project["theme"]["font"] is False
    assert [path for path in loaded if not (ROOT / "docs" / path).is_file()] == []
