"""The scripted endpoint, as real openai clients see it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from spangrad.testing import ScriptedEndpoint

USER: Any = [{"role": "user", "content": "hé"}]


def client(endpoint: ScriptedEndpoint, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=endpoint.base_url, api_key="sk-x", **({"max_retries": 0} | options))


def test_it_answers_and_keeps_every_request_as_it_arrived() -> None:
    endpoint = ScriptedEndpoint(lambda body: f"you said {body['messages'][-1]['content']}")
    with endpoint, client(endpoint) as openai_client:
        answer = openai_client.chat.completions.create(model="m", messages=USER, extra_headers={"x-mine": "1"})
    assert answer.choices[0].message.content == "you said hé"
    (request,) = endpoint.requests
    assert (request.path, request.headers["x-mine"], request.body["messages"]) == ("/v1/chat/completions", "1", USER)


def test_its_stream_carries_the_same_tokens_as_its_answer() -> None:
    extra = {"return_token_ids": True}
    with ScriptedEndpoint(lambda _: "fünf €") as endpoint, client(endpoint) as openai_client:
        create = openai_client.chat.completions.create
        whole: Any = create(model="m", messages=USER, logprobs=True, extra_body=extra)
        chunks: list[Any] = list(create(model="m", messages=USER, logprobs=True, stream=True, extra_body=extra))
    assert whole.choices[0].token_ids == [*"fünf €".encode(), 257]
    choices = [chunk.choices[0] for chunk in chunks]
    assert [i for choice in choices for i in getattr(choice, "token_ids", [])] == whole.choices[0].token_ids
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in whole.choices[0].logprobs.content]
    assert "".join(choice.delta.content or "" for choice in choices) == "fünf €"
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids


@pytest.mark.parametrize("status", [429, 500])
def test_clients_retry_its_first_failures(status: int) -> None:
    endpoint = ScriptedEndpoint(lambda _: "at last", fail_first=2, fail_status=status)
    with endpoint, client(endpoint, max_retries=2) as openai_client:
        answer = openai_client.chat.completions.create(model="m", messages=USER)
    assert answer.choices[0].message.content == "at last"
    assert [request.headers["x-stainless-retry-count"] for request in endpoint.requests] == ["0", "1", "2"]


def test_a_slow_answer_times_out() -> None:
    endpoint = ScriptedEndpoint(lambda _: "x", delay=0.5)
    with endpoint, client(endpoint, timeout=0.1) as openai_client, pytest.raises(openai.APITimeoutError):
        openai_client.chat.completions.create(model="m", messages=USER)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_breaks_off_is_an_error_for_its_client(stream: bool) -> None:
    endpoint = ScriptedEndpoint(lambda _: "hello", break_off=True)
    with endpoint, client(endpoint) as openai_client, pytest.raises(Exception, match=r"(?i)connection|incomplete"):
        list(openai_client.chat.completions.create(model="m", messages=USER, stream=stream))
