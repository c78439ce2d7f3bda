"""Hooking all integrations in for the length of a block, each as soon as its framework is there."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from spangrad.errors import OtherModuleError, PluginError
from spangrad.plugins import Kinds, Plugins, Register


class Recorded:
    def __init__(self, name: str, events: list[str], framework: str, error: Exception | None = None) -> None:
        self.framework = framework
        self._name = name
        self._events = events
        self._error = error

    def attach(self) -> Callable[[], None]:
        importlib.import_module(self.framework)
        if self._error is not None:
            raise self._error
        self._events.append(f"attach {self._name}")
        return lambda: self._events.append(f"detach {self._name}")

    def describe(self) -> Mapping[str, str]:
        return {}


def plugins(*integrations: Recorded, strict: bool = False, asked: frozenset[str] = frozenset()) -> Plugins:
    kinds = Kinds()
    register = Register(kinds, plugin="test", distribution="test")
    for name, integration in zip("abcdefgh", integrations, strict=False):
        register.integration(name, integration)
    return Plugins(kinds, (), strict=strict, asked=asked)


@pytest.fixture
def frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Makes modules that can be imported, of names that no other test uses."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(name: str, code: str = "") -> str:
        full = f"{name}_of_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{full}.py").write_text(code)
        importlib.invalidate_caches()
        made.append(full)
        return full

    yield make
    for name in made:
        sys.modules.pop(name, None)


MISSING = PluginError("The framework is too old")


def test_where_frameworks_are_imported_they_are_attached_at_once_and_a_broken_one_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[str] = []
    three = plugins(
        Recorded("a", events, "json"), Recorded("b", events, "json", MISSING), Recorded("c", events, "logging")
    )

    with caplog.at_level(logging.WARNING), three.attached():
        events.append("block")

    assert events == ["attach a", "attach c", "block", "detach c", "detach a"]
    assert [record.message for record in caplog.records] == [
        "The integration 'b' is left out: The framework is too old"
    ]


def test_an_error_in_the_block_detaches_them_and_passes_through() -> None:
    events: list[str] = []
    two = plugins(Recorded("a", events, "json"), Recorded("b", events, "json"))

    with pytest.raises(KeyError), two.attached():
        raise KeyError("x")

    assert events == ["attach a", "attach b", "detach b", "detach a"]


@pytest.mark.parametrize(
    ("error", "what"),
    [(MISSING, "The framework is too old"), (OSError("odd"), "Attaching the integration 'b' raised OSError: odd")],
)
def test_under_strict_a_broken_one_is_an_error_and_nothing_stays_attached(error: Exception, what: str) -> None:
    events: list[str] = []
    two = plugins(Recorded("a", events, "json"), Recorded("b", events, "json", error), strict=True)

    with pytest.raises(PluginError, match=what), two.attached():
        events.append("block")

    assert events == ["attach a", "detach a"]


def test_a_framework_imported_in_the_block_is_attached_by_its_import(frameworks: Callable[..., str]) -> None:
    events: list[str] = []
    late, never = frameworks("late"), frameworks("never")
    two = plugins(Recorded("late", events, late), Recorded("never", events, never))

    with two.attached():
        events.append("block")
        importlib.import_module(late)
        events.append("imported")

    assert events == ["block", "attach late", "imported", "detach late"]
    assert never not in sys.modules


def test_after_the_block_an_import_attaches_nothing_and_the_next_block_starts_afresh(
    frameworks: Callable[..., str],
) -> None:
    events: list[str] = []
    late = frameworks("late")
    one = plugins(Recorded("late", events, late))

    with one.attached():
        pass
    importlib.import_module(late)
    assert events == []
    with one.attached():
        pass
    assert events == ["attach late", "detach late"]


def test_overlapping_blocks_each_attach_and_may_end_in_any_order(frameworks: Callable[..., str]) -> None:
    events: list[str] = []
    late = frameworks("late")
    first, second = (plugins(Recorded(name, events, late)).attached() for name in ("first", "second"))

    first.__enter__()
    second.__enter__()
    importlib.import_module(late)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)

    assert events == ["attach first", "attach second", "detach first", "detach second"]


def test_a_module_imported_anew_is_attached_anew(frameworks: Callable[..., str]) -> None:
    events: list[str] = []
    late = frameworks("late")
    one = plugins(Recorded("late", events, late))

    for _ in range(2):
        sys.modules.pop(late, None)
        with one.attached():
            importlib.import_module(late)

    assert events == ["attach late", "detach late"] * 2


def test_a_late_one_that_is_broken_warns_once_and_the_import_goes_on(
    frameworks: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    late = frameworks("late", "value = 7")
    one = plugins(Recorded("a", [], late, RuntimeError("odd")))

    with caplog.at_level(logging.WARNING), one.attached():
        assert importlib.import_module(late).value == 7

    (record,) = caplog.records
    assert "'a' is left out: Attaching the integration 'a' raised RuntimeError: odd." in record.message


def test_under_strict_a_late_one_that_is_broken_fails_the_import_and_others_are_attached_all_the_same(
    frameworks: Callable[..., str],
) -> None:
    events: list[str] = []
    late = frameworks("late")
    two = plugins(Recorded("a", events, late, MISSING), Recorded("b", events, late), strict=True)

    with two.attached(), pytest.raises(PluginError, match="The framework is too old"):
        importlib.import_module(late)

    assert events == ["attach b", "detach b"]


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_that_only_has_the_frameworks_name_is_told_once_and_is_no_error(
    frameworks: Callable[..., str], caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    late = frameworks("late", "value = 7")
    one = plugins(Recorded("a", [], late, OtherModuleError(f"{late} is something else")), strict=strict)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with one.attached():
                assert importlib.import_module(late).value == 7

    assert [record.message for record in caplog.records] == [
        f"The integration 'a' is left out: {late} is something else"
    ]


def test_a_module_that_only_has_the_frameworks_name_is_an_error_where_that_was_asked_for_by_name(
    frameworks: Callable[..., str],
) -> None:
    late = frameworks("late")
    error = OtherModuleError("It is something else")
    one = plugins(Recorded("a", [], late, error), strict=True, asked=frozenset({"test"}))

    with one.attached(), pytest.raises(OtherModuleError, match="something else"):
        importlib.import_module(late)


def test_a_framework_first_imported_by_several_threads_is_attached_before_any_of_them_goes_on(
    frameworks: Callable[..., str],
) -> None:
    events: list[str] = []
    late = frameworks("late", "import time\ntime.sleep(0.05)  # long enough for the other threads to come upon it\n")
    together = threading.Barrier(6)

    def use() -> None:
        together.wait()
        importlib.import_module(late)
        events.append("used")

    with plugins(Recorded("late", events, late)).attached():
        threads = [threading.Thread(target=use) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert events == ["attach late", *["used"] * 6, "detach late"]


def test_a_framework_that_another_thread_is_importing_is_attached_when_it_is_there(
    frameworks: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    gates = {"begun": threading.Event(), "go on": threading.Event()}
    monkeypatch.setattr(threading, "gates_of_this_test", gates, raising=False)
    late = frameworks(
        "late",
        "import threading\nthreading.gates_of_this_test['begun'].set()\nthreading.gates_of_this_test['go on'].wait(10)\n",
    )
    importer = threading.Thread(target=importlib.import_module, args=(late,))
    importer.start()
    gates["begun"].wait(10)

    def block() -> None:
        with plugins(Recorded("late", events, late)).attached():
            events.append("block")

    other = threading.Thread(target=block)
    other.start()
    assert events == []
    gates["go on"].set()
    importer.join(10)
    other.join(10)

    assert events == ["attach late", "block", "detach late"]


def test_a_block_entered_in_the_middle_of_the_frameworks_own_import_does_not_hang(
    frameworks: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    late = frameworks("late", "import sys\nsys.block_of_this_test()\n")

    def block() -> None:
        with plugins(Recorded("late", events, late)).attached():
            events.append("block")

    monkeypatch.setattr(sys, "block_of_this_test", block, raising=False)
    importlib.import_module(late)

    assert events == ["attach late", "block", "detach late"]


def test_waiting_for_frameworks_imports_none_of_them() -> None:
    script = """
import sys
from spangrad.plugins import load_plugins
with load_plugins({}).attached():
    print(sorted({module.split(".")[0] for module in sys.modules} & {"torch", "openai", "langchain_core", "agents", "autogen_core"}))
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout == "[]\n"


class TakesItsValue(Recorded):
    def attach(self) -> Callable[[], None]:
        exec(f"from {self.framework} import value")  # noqa: S102 - which fails while the module is half there
        return super().attach()


@pytest.mark.parametrize("strict", [False, True])
def test_a_framework_that_is_only_half_there_is_attached_as_soon_as_it_is_whole(
    frameworks: Callable[..., str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    events: list[str] = []
    late = frameworks("late", "import sys\nsys.begin_of_this_test()\nvalue = 1\n")
    block = plugins(TakesItsValue("late", events, late), strict=strict).attached()
    monkeypatch.setattr(sys, "begin_of_this_test", block.__enter__, raising=False)

    importlib.import_module(late)
    for thread in threading.enumerate():
        if thread.name == "spangrad-attach":
            thread.join(10)
    block.__exit__(None, None, None)

    assert events == ["attach late", "detach late"]
    assert caplog.records == []
