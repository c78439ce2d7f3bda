"""The parts of the contract suite that can be seen without any framework."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Tracer, set_span_in_context

import spangrad.testing
from spangrad import semconv
from spangrad.plugins import Integration
from spangrad.testing import REFERENCE, ByteChatFormat, ContractEndpoint, IntegrationContract, ReferenceRun
from spangrad.testing._contract._expect import holds, same
from spangrad.testing._contract._places import differences, places, put_back
from spangrad.testing._contract._span_tree import plain, tree_text, unordered


def test_the_scripted_parts_need_no_pytest() -> None:
    script = (
        "import sys; sys.modules['pytest'] = None; import spangrad.testing as t; print(t.ByteChatFormat, t.Structure);"
        "sys.modules.pop('pytest'); assert 'pytest' not in sys.modules; t.IntegrationContract; assert 'pytest' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'IntegrationContrakt'"):
        spangrad.testing.IntegrationContrakt  # noqa: B018 - reading it is the point


# expectations


def test_a_difference_names_both_sides() -> None:
    same([1, 2], [1, 2], "Numbers")
    with pytest.raises(AssertionError) as caught:
        same([1, 2], [2, 1], "Numbers")
    assert str(caught.value) == "Numbers\n  expected: [2, 1]\n  found:    [1, 2]"


def test_texts_of_several_lines_stand_below_their_label() -> None:
    with pytest.raises(AssertionError) as caught:
        same("a\n  b", "a", "The spans")
    assert str(caught.value) == "The spans\n  expected: 'a'\n  found:    \n    a\n      b"


def test_what_does_not_hold_is_said() -> None:
    holds([1], "There is nothing")
    with pytest.raises(AssertionError, match="There is nothing"):
        holds([], "There is nothing")


# trees


@pytest.fixture
def tracer() -> Tracer:
    return TracerProvider(shutdown_on_exit=False).get_tracer("tests")


Grow = Callable[..., Any]


@pytest.fixture
def grow(tracer: Tracer) -> Grow:
    """Makes a span below another one, ended at once; `at` is when it begins."""

    def make(name: str, at: int, above: Any = None, **attributes: str) -> Any:
        context = set_span_in_context(above) if above is not None else None
        span = tracer.start_span(name, context, attributes=attributes, start_time=at)
        span.end(at + 1)
        return span

    return make


def test_spans_are_shown_below_their_parents_in_the_order_they_began(grow: Grow) -> None:
    writer = grow("invoke_agent writer", 1)
    late, early = grow("execute_tool b", 5, writer), grow("execute_tool a", 3, writer)
    call = grow("openai.chat", 4, early, **{semconv.CALL_ID: "c1"})
    spans: list[ReadableSpan] = [call, late, early, writer]

    expected = "invoke_agent writer\n  execute_tool a\n    call researcher\n  execute_tool b"
    assert tree_text(spans, {"c1": "researcher"}) == expected


def test_a_call_of_another_rollout_is_shown_as_such(grow: Grow) -> None:
    spans = [grow("openai.chat", 1, **{semconv.CALL_ID: "c9"})]
    assert tree_text(spans, {"c1": "writer"}) == "call of nobody here (c9)"


def test_a_span_whose_parent_is_not_there_is_a_root(grow: Grow) -> None:
    above = grow("request", 1)
    assert tree_text([grow("invoke_agent a", 2, above)], {}) == "invoke_agent a"


def test_branches_compare_whichever_was_first(grow: Grow) -> None:
    root = grow("both", 1)
    right, left = grow("right", 2, root), grow("left", 3, root)
    spans = [root, right, left, grow("openai.chat", 4, right, **{semconv.CALL_ID: "c1"})]

    written = """
        both
          right
            call a
          left
    """
    assert tree_text(spans, {"c1": "a"}, ordered=False) == unordered(written) == "both\n  left\n  right\n    call a"
    assert tree_text(spans, {"c1": "a"}) == plain(written) != unordered(written)


# places


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A small library with a class, a list and a function."""
    module = types.ModuleType("contract_library")
    source = """
class Client:
    hooks = []
    class Inner:
        def deep(self): ...
    def create(self): ...

handlers = []
def configure(): ...
"""
    exec(source, vars(module))  # noqa: S102 - the library's source stands above
    monkeypatch.setitem(sys.modules, "contract_library", module)
    return module


Change = Callable[[Any], object]

CHANGES: Mapping[str, Change] = {
    "contract_library:Client.create": lambda library: setattr(library.Client, "create", lambda _: None),
    "contract_library:Client.Inner.deep": lambda library: setattr(library.Client.Inner, "deep", lambda _: None),
    "contract_library:Client.hooks": lambda library: library.Client.hooks.append(1),
    "contract_library:Client.extra": lambda library: setattr(library.Client, "extra", 1),
    "contract_library:configure": lambda library: setattr(library, "configure", lambda: None),
    "contract_library:handlers": lambda library: library.handlers.append(1),
}


@pytest.mark.parametrize("place", CHANGES)
def test_every_change_in_a_library_is_noticed(library: types.ModuleType, place: str) -> None:
    before = places(["contract_library"])
    assert differences(before, places(["contract_library"])) == []
    CHANGES[place](library)
    assert differences(before, places(["contract_library"])) == [place]


def test_what_is_gone_is_noticed(library: Any) -> None:
    before = places(["contract_library"])
    del library.Client.create
    assert differences(before, places(["contract_library"])) == ["contract_library:Client.create"]


def test_other_libraries_are_not_looked_at(library: types.ModuleType) -> None:
    before = places(["contract"])
    vars(library)["configure"] = None
    assert before == {}


def test_functions_of_classes_are_put_back(library: Any) -> None:
    before = places(["contract_library"])
    with put_back(["contract_library"]):
        library.Client.create = lambda _: None
    assert differences(before, places(["contract_library"])) == []


# subclasses


class Smallest(IntegrationContract):
    """Says no more than it has to."""

    ways = ("ask",)
    records_work = False

    def integration(self) -> Integration:
        raise NotImplementedError

    async def solver(self, endpoint: ContractEndpoint, *, tools: bool = False) -> Any:
        raise NotImplementedError

    async def ask(self, solver: Any, way: str, question: str) -> str:
        raise NotImplementedError

    async def reference(self, endpoint: ContractEndpoint, run: ReferenceRun) -> str:
        raise NotImplementedError


def test_only_the_tests_an_integration_has_use_for_are_its_own() -> None:
    class Streaming(Smallest):
        stream_ways: ClassVar[tuple[str, ...]] = ("stream",)

    def tests(contract: type[IntegrationContract]) -> set[str]:
        return {name for name in dir(contract) if name.startswith("test_") and callable(getattr(contract, name))}

    more = tests(Streaming) - tests(Smallest)
    assert len(more) == 4
    assert all("stream" in name for name in more)
    assert not any("tool" in name or "batch" in name or "judge" in name for name in tests(Streaming))
    assert "test_the_reference_conversation_gives_the_reference_transitions" in tests(Smallest)


def test_a_subclass_that_leaves_something_out_cannot_be_made() -> None:
    class Incomplete(IntegrationContract):
        ways = ("ask",)

    with pytest.raises(TypeError, match=r"abstract methods? .*solver"):
        Incomplete()  # type: ignore[abstract]  # that it cannot be made is the point


def test_the_reference_answers_are_what_the_chat_format_reads_back() -> None:
    chat, tools = ByteChatFormat(), [REFERENCE.tool]
    first = chat.parse(REFERENCE.answers[0], tools=tools)
    assert [dict(call["function"]) for call in first.tool_calls] == [
        {"name": "measure", "arguments": '{"city": "Zurich", "degrees": 21}'}
    ]
    message = {"role": "assistant", "content": first.content, "tool_calls": list(first.tool_calls)}
    assert chat.decode(chat.render_answer(message)) == f"{REFERENCE.answers[0]}<|im_end|>"
    assert REFERENCE.call_tool({"city": "Zurich", "degrees": 21}) == "Zurich: 21 °C"
