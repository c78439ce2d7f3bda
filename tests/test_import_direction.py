"""Imports point one way: examples -> integrations, backends -> core; and inside core, later rooms -> earlier rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLUGINS = {path.name: path for path in sorted(ROOT.glob("*/*/src/spangrad_*"))}
CORE = ROOT / "core/src/spangrad"
FRAMEWORKS = {
    "torch",
    "transformers",
    "openai",
    "langchain_core",
    "langgraph",
    "agents",
    "autogen_agentchat",
    "autogen_core",
    "autogen_ext",
    "langchain",
    "langchain_openai",
    "verl",
    "vllm",
    "ray",
}
SHARED_INTEGRATION = "spangrad_openai"
"""The one owner of the openai-client patch; other integrations may import it."""
SHARED_BACKEND = "spangrad_torch"
"""The one owner of model folders and chat templates; other backends may import it."""

# Each room may import the rooms before it, and itself.
ROOMS = (
    "errors",
    "semconv",
    "_latest",
    "spans",
    "transitions",
    "backend",
    "lightningrl",
    "plugins",
    "capture",
    "store",
    "gateway",
    "rollouts",
    "training",
    "testing",
    "cli",
)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module a file imports, at any depth, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def test_there_are_plugins_to_look_at() -> None:
    assert {"spangrad_torch", "spangrad_openai"} <= set(PLUGINS)
    assert len(sources(CORE)) > 30


def test_core_imports_no_framework_no_torch_and_no_plugin() -> None:
    forbidden = FRAMEWORKS | set(PLUGINS)
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources(CORE)
        for module, line in imports(path)
        if module.split(".")[0] in forbidden
    ]

    assert found == []


def test_every_room_of_core_is_placed() -> None:
    rooms = {
        path.stem for path in CORE.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")
    }

    assert rooms - {"__init__", "__main__", "py"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_core_imports_only_rooms_before_it(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    folder = CORE / room
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in (sources(folder) if folder.is_dir() else [CORE / f"{room}.py"])
        for module, line in imports(path)
        if module.startswith("spangrad.") and module.split(".")[1] not in allowed
    ]

    assert found == []


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugins_do_not_import_each_other(plugin: str) -> None:
    others = set(PLUGINS) - {plugin}
    if "integrations" in PLUGINS[plugin].parts:
        others -= {SHARED_INTEGRATION}
    if "backends" in PLUGINS[plugin].parts:
        others -= {SHARED_BACKEND}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources(PLUGINS[plugin])
        for module, line in imports(path)
        if module.split(".")[0] in others
    ]

    assert found == []


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugins_entry_point_module_imports_no_framework(plugin: str) -> None:
    entry = PLUGINS[plugin] / "plugin.py"
    tree = ast.parse(entry.read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in top if isinstance(node, ast.ImportFrom) and node.module]

    assert [name for name in names if name.split(".")[0] in FRAMEWORKS] == []


def test_no_folder_of_a_package_shadows_a_real_library() -> None:
    shadows = [
        path
        for top in ("integrations", "backends")
        for path in (ROOT / top).glob("**/__init__.py")
        if "src" not in path.parts
    ]

    assert shadows == []
