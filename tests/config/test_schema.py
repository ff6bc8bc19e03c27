"""Every setting is read by the product: a key that only loads is a promise that nobody keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mcpagent.config.resolve import KNOWN_KEYS, SECTIONS
from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import Section
from tests.house import PACKAGE

# Where settings are declared, spelled, joined and refused: reading one here is not using it.
_DECLARING = ("schema.py", "sections.py", "checks.py", "resolve.py")
# A section handed on whole is read where its fields become the fields or parameters of something else.
_WHOLE = {"model_dump", "model_fields"}


def _section_types() -> dict[str, tuple[str, ...]]:
    """The class names of sections by the path of the section that they describe."""
    types: dict[str, tuple[str, ...]] = {"TrainConfig": ()}

    def walk(model: type[Section], path: tuple[str, ...]) -> None:
        for name, info in model.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
                types[info.annotation.__name__] = (*path, name)
                walk(info.annotation, (*path, name))

    walk(TrainConfig, ())
    return types


class _Reader(ast.NodeVisitor):
    """The settings that a module reads: `x.section.key`, or `y.key` where `y` is bound to a section."""

    def __init__(self) -> None:
        self.read: set[tuple[str, ...]] = set()
        self._bound: dict[str, tuple[str, ...]] = {}
        self._types = _section_types()

    def section_of(self, node: ast.expr) -> tuple[str, ...] | None:
        """The path of the section that an expression gives; () is the whole configuration."""
        if isinstance(node, ast.Name):
            return self._bound.get(node.id, () if "config" in node.id else None)
        if isinstance(node, ast.Attribute):
            if (around := self.section_of(node.value)) is not None and (*around, node.attr) in SECTIONS:
                return (*around, node.attr)
            if (node.attr,) in SECTIONS:
                return (node.attr,)
            return () if "config" in node.attr else None
        return None

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._bind(one, other)
        elif isinstance(target, ast.Name):
            section = self.section_of(value)
            if section is not None:
                self._bound[target.id] = section

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node.value)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        annotation = ast.unparse(node.annotation) if node.annotation is not None else ""
        for name, path in self._types.items():
            if name in annotation.replace("|", " ").split():
                self._bound[node.arg] = path
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        section = self.section_of(node.value)
        if section is not None:
            if node.attr in _WHOLE:
                self.read |= {key for key in KNOWN_KEYS if section and key[: len(section)] == section}
            self.read.add((*section, node.attr))
        self.generic_visit(node)


def _modules() -> Iterator[ast.Module]:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "config" or path.name not in _DECLARING:
            yield ast.parse(path.read_text(encoding="utf-8"))


def _read_by_properties() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Of each property or method of a section's class, the settings that it reads."""
    found: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    types = _section_types()
    for module in (ast.parse((PACKAGE / "config" / name).read_text("utf-8")) for name in _DECLARING[:2]):
        for cls in [node for node in module.body if isinstance(node, ast.ClassDef) and node.name in types]:
            for method in [node for node in cls.body if isinstance(node, ast.FunctionDef)]:
                reader = _Reader()
                reader._bound["self"] = types[cls.name]
                reader.visit(method)
                found[(*types[cls.name], method.name)] = reader.read
    return found


def settings_read() -> set[tuple[str, ...]]:
    """Every setting that code outside of the declarations reads, by itself or through a property."""
    read: set[tuple[str, ...]] = set()
    for module in _modules():
        for scope in ast.walk(module):
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                reader = _Reader()
                reader.visit(scope)
                read |= reader.read
    properties = _read_by_properties()
    while new := {key for name in read & properties.keys() for key in properties[name]} - read:
        read |= new
    return read


def test_every_setting_is_read_by_the_product() -> None:
    assert len(KNOWN_KEYS) > 100
    assert sorted(".".join(key) for key in KNOWN_KEYS - settings_read()) == []
