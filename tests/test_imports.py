"""The order of the house: a module imports only modules that stand before it, late imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import whymatch

ROOT = Path(whymatch.__file__).parent
FOLDERS = {path.parent.name for path in ROOT.glob("*/__init__.py")}

# Modules and folders, from the first step to the last. Those on one line do not import each other.
ORDER = """
lazy files frames memory progress quadrature shapley
pieces settings words
reading
paths
results
encoders
schedule correction
method
policy
runner
search
explainer callables
corpus integrations
views
training
truth
studies web
cli
"""
RANK = {name: rank for rank, names in enumerate(ORDER.strip().splitlines()) for name in names.split()}
# A result's own doors to its views: functions that may import what stands later.
DOORS = {("results", name) for name in ("plot", "widget", "to_html", "_repr_html_")}
# Where the package's own names live; `from whymatch import Explainer` depends on explainer.py.
HOMES = {"__version__": "lazy"} | {
    name: getattr(whymatch, name).__module__.partition(".")[2] for name in whymatch.__all__ if name != "__version__"
}


def imports(node: ast.AST, function: str = "") -> Iterator[tuple[str, int, str]]:
    """What is imported of whymatch, on which line and in which function; names for types only do not count."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    names = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "whymatch":
        names = [f"whymatch.{HOMES.get(alias.name, alias.name)}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    yield from ((name.removeprefix("whymatch."), node.lineno, function) for name in names if name[:9] == "whymatch.")
    for child in ast.iter_child_nodes(node):
        yield from imports(child, node.name if isinstance(node, ast.FunctionDef) else function)


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): list(
        imports(ast.parse(path.read_text(encoding="utf-8")))
    )
    for path in sorted(ROOT.rglob("*.py"))
    if not path.relative_to(ROOT).parts[0].startswith("__")
}


def test_imports_go_one_way():
    wrong = [
        f"{name} has no place in the order" for name in sorted({name.split(".")[0] for name in MODULES} - set(RANK))
    ]
    for module, imported in MODULES.items():
        room = module.split(".")[0]
        for name, line, function in imported:
            target = name.split(".")[0]
            if ((room, function) in DOORS and target == "views") or (target == room and room in FOLDERS):
                continue
            if not RANK.get(target, 0) < RANK.get(room, len(RANK)):
                wrong.append(f"{module}, line {line}, imports {name}{f' in {function}' if function else ''}")
    assert not wrong, "\n".join(["imports of what stands later:", *wrong])


def test_no_cycle_within_a_folder():
    def module_of(name: str) -> str:
        while name not in MODULES and "." in name:
            name = name.rpartition(".")[0]
        return name

    graph = {
        module: {module_of(name) for name, _, function in imported if (module.split(".")[0], function) not in DOORS}
        - {module}
        for module, imported in MODULES.items()
        if module.split(".")[0] in FOLDERS
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle
