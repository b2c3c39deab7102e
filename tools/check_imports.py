"""Check the direction of imports: who may import whom in drumbeat, and who touches internals.

`make check` runs it. Imports inside functions count for the direction, and so does
`importlib.import_module` with a literal name: a layer that needs another one needs it however
late it asks. For cycles only imports that run at import time count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "drumbeat"

# What each folder or file right under src/drumbeat may import, besides itself and BOTTOM.
# "drumbeat" is the package's __init__.py.
BELOW_TRAINING = frozenset({"collectives", "data", "state", "cluster"})
BELOW_CLI = frozenset({"control", "cluster"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "cli": frozenset({"platforms", "monitor", "launch", "porting"}) | BELOW_CLI,
    "platforms": BELOW_CLI,
    "monitor": BELOW_CLI,
    "launch": BELOW_CLI | {"state"},
    "control": frozenset({"cluster"}),
    "cluster": frozenset(),
    "drumbeat": frozenset({"training", "strategies"}) | BELOW_TRAINING,
    "callbacks": frozenset({"training", "strategies"}) | BELOW_TRAINING,
    "metrics": frozenset({"training", "state"}),
    "training": frozenset({"strategies"}) | BELOW_TRAINING,
    "strategies": BELOW_TRAINING,
    "collectives": frozenset({"cluster"}),
    "data": frozenset({"cluster"}),
    "state": frozenset({"cluster"}),
    "__main__": frozenset({"cli", "auto"}),
    "auto": frozenset({"training", "launch"}),
    "hook": frozenset({"auto"}),
    "porting": frozenset(),
    "errors": frozenset(),
    "legacy_names": frozenset(),
    "tf_internals": frozenset(),
    "keras_internals": frozenset(),
    "tf_keras_internals": frozenset(),
}
# Every layer may import these.
BOTTOM = frozenset(
    {"errors", "legacy_names", "tf_internals", "keras_internals", "tf_keras_internals"}
)
# Names that any layer may take from the package itself.
PACKAGE_NAMES = frozenset({"__version__"})

# Private packages of others, and the one file that may touch each.
INTERNALS = {
    "tensorflow.python": "tf_internals",
    "keras.src": "keras_internals",
    "tf_keras.src": "tf_keras_internals",
}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import of `name` (a full dotted name) by the module `by`."""

    by: str
    name: str
    path: Path
    line: int
    at_import_time: bool

    def problem(self, text: str) -> str:
        """`text` with the place in front, as linters print it."""
        return f"{self.path}:{self.line}: {text}"


def check(source_root: Path) -> list[str]:
    """Every violation under `source_root` (the folder that holds `drumbeat/`), one line each."""
    modules = {_module_name(path, source_root): path for path in _python_files(source_root)}
    imports = [
        found
        for name, path in modules.items()
        for found in _imports_of(name, path, source_root, modules)
    ]
    problems = [text for found in imports for text in _check_one(found)]
    return sorted(problems) + _check_cycles(imports, modules)


def layer_of(module: str) -> str:
    """The folder or file right under the package that `module` belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


def _check_one(found: Import) -> Iterator[str]:
    layer = layer_of(found.by)
    for internal, owner in INTERNALS.items():
        if _is_within(found.name, internal) and layer != owner:
            yield found.problem(
                f"{found.by} touches {found.name}; "
                f"only src/{PACKAGE}/{owner}.py may touch {internal}"
            )
    # The bare package is loaded whenever a part of it is; its attributes are looked at by name.
    if not _is_within(found.name, PACKAGE) or found.name == PACKAGE:
        return
    if layer not in MAY_IMPORT:
        yield found.problem(
            f"{layer!r} is in no layer; add it to MAY_IMPORT in {Path(__file__).name}"
        )
        return
    target = layer_of(found.name)
    if target in PACKAGE_NAMES or target == layer or target in BOTTOM | MAY_IMPORT[layer]:
        return
    allowed = ", ".join(sorted(MAY_IMPORT[layer] | BOTTOM))
    yield found.problem(f"{found.by} imports {found.name}; {layer} may import only {allowed}")


def _check_cycles(imports: list[Import], modules: dict[str, Path]) -> list[str]:
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for found in imports:
        target = _nearest_module(found.name, modules)
        if found.at_import_time and target and target != found.by:
            graph[found.by].add(target)
    cycle = _find_cycle(graph)
    return [f"import cycle: {' -> '.join(cycle)}"] if cycle else []


def _find_cycle(graph: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()
    trail: list[str] = []

    def visit(node: str) -> list[str]:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in done:
            return []
        trail.append(node)
        for target in sorted(graph[node]):
            if cycle := visit(target):
                return cycle
        trail.pop()
        done.add(node)
        return []

    for node in sorted(graph):
        if cycle := visit(node):
            return cycle
    return []


def _imports_of(
    module: str, path: Path, source_root: Path, modules: dict[str, Path]
) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node, at_import_time in _walk(tree, at_import_time=True):
        for name in _names(node, package, modules):
            yield Import(
                by=module,
                name=name,
                path=path.relative_to(source_root.parent),
                line=getattr(node, "lineno", 0),
                at_import_time=at_import_time,
            )


def _walk(node: ast.AST, *, at_import_time: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        runs_now = at_import_time and not later and not _is_type_checking(child)
        yield child, runs_now
        yield from _walk(child, at_import_time=runs_now)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _names(node: ast.AST, package: str, modules: dict[str, Path]) -> Iterator[str]:
    """Full names of what `node` imports, or spells out after a shorter import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        for alias in node.names:
            name = f"{base}.{alias.name}"
            # A name taken from a module is an import of that module, except from the package
            # itself, whose names are the layers.
            is_plain_name = _is_within(base, PACKAGE) and base != PACKAGE and name not in modules
            yield base if is_plain_name else name
    elif isinstance(node, ast.Attribute):
        # Only the exact name, or each longer one around it would be reported again.
        spelled = ast.unparse(node).replace("tf.", "tensorflow.", 1)
        if spelled in INTERNALS or spelled in {f"{PACKAGE}.{layer}" for layer in MAY_IMPORT}:
            yield spelled
    elif isinstance(node, ast.Call) and node.args and _is_import_call(node.func):
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value


def _is_import_call(function: ast.expr) -> bool:
    return ast.unparse(function).rpartition(".")[2] in {"import_module", "__import__"}


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _nearest_module(name: str, modules: dict[str, Path]) -> str:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _python_files(source_root: Path) -> list[Path]:
    return sorted((source_root / PACKAGE).rglob("*.py"))


def _module_name(path: Path, source_root: Path) -> str:
    parts = path.relative_to(source_root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1] / "src"
    problems = check(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
