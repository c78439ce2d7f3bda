"""The model that judges: what it is asked, how its reply is read, and what happens when there is no score in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from spangrad.errors import RewardError
from spangrad.rollouts.judging import FinishedRollout, GroupJudge, JudgeSettings, ModelJudge
from spangrad.rollouts.judging._model_question import scores_in
from spangrad.testing import ScriptedEndpoint

SETTINGS = JudgeSettings("http://127.0.0.1:1/v1", "judge-model", "", "The answer is right and short.")

Reply = str | Callable[[Any], str]
Serve = Callable[..., tuple[ScriptedEndpoint, JudgeSettings]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that gives the replies one after another, each perhaps made from the request, and settings that ask it."""
    with ExitStack() as running:

        def make(*replies: Reply, **options: Any) -> tuple[ScriptedEndpoint, JudgeSettings]:
            left = list(replies)

            def answer(body: Any) -> str:
                reply = left.pop(0)
                return reply if isinstance(reply, str) else reply(body)

            endpoint = running.enter_context(ScriptedEndpoint(answer, token_ids=False, **options))
            return endpoint, JudgeSettings(endpoint.base_url, "judge-model", "secret", SETTINGS.criteria, 0.0, 1.0)

        yield make


def rollout(output: Any, number: int = 0) -> FinishedRollout:
    return FinishedRollout(f"r-{number}", 1, "t", {"question": "2+2?"}, output)


def said(body: Mapping[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("It is right.\nScore: 0.75", [0.75]),
        ("**Score:** 1", [1.0]),
        ("score = .5.", [0.5]),
        ("Score: 0.1 at first, but then again: Score: 0.9", [0.9]),
        (" 0.25\n", [0.25]),
        ("Score: 2", None),
        ("Score: -0.1", None),
        ("Score: high", None),
        ("I would give it 0.5", None),
        ("", None),
    ],
)
def test_one_score_is_read(text: str, scores: list[float] | None) -> None:
    assert scores_in(SETTINGS, text, 1) == scores


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("The first is best.\nScores: 1, 0, 0.5", [1.0, 0.0, 0.5]),
        ("**Scores:** `0.1`, `0.2`, `0.3`.", [0.1, 0.2, 0.3]),
        ("Scores: [0.1, 0.2, 0.3]", [0.1, 0.2, 0.3]),
        ("Scores: 1, 0", None),
        ("Scores: 1, 0, 0.5, 0.5", None),
        ("Scores: 1, best, 0.5", None),
        ("Scores: 1, 0, 7", None),
        ("Score: 1", None),
        ("1, 0, 0.5", None),
    ],
)
def test_as_many_scores_as_answers_are_read(text: str, scores: list[float] | None) -> None:
    assert scores_in(SETTINGS, text, 3) == scores


async def test_it_is_shown_task_answer_and_criteria_at_temperature_0_with_its_key(serve: Serve) -> None:
    endpoint, settings = serve("Fine.\nScore: 0.75")
    assert await ModelJudge(settings).rewards(rollout("four"), limit=30) == {"judge": 0.75}
    (request,) = endpoint.requests
    assert (request.body["model"], request.body["temperature"]) == ("judge-model", 0)
    assert request.headers["authorization"] == "Bearer secret"
    (question,) = said(request.body)
    for part in ('"question": "2+2?"', "four", SETTINGS.criteria, "Score: X", "from 0 (worst) to 1 (best)"):
        assert part in question


async def test_a_reply_without_a_score_is_answered_with_a_reminder_once(serve: Serve) -> None:
    endpoint, settings = serve("Splendid!", "Score: 1")
    assert await ModelJudge(settings).rewards(rollout("four"), limit=30) == {"judge": 1.0}
    question, reply, reminder = said(endpoint.requests[1].body)
    assert (question, reply) == (said(endpoint.requests[0].body)[0], "Splendid!")
    assert "No score could be read" in reminder


async def test_the_second_time_the_rollout_has_no_reward_and_the_reply_is_shown(serve: Serve) -> None:
    endpoint, settings = serve("Splendid!", "As I said: splendid!")
    with pytest.raises(RewardError, match=r"gave no score from 0 to 1; it said: 'As I said: splendid!'"):
        await ModelJudge(settings).rewards(rollout("four"), limit=30)
    assert len(endpoint.requests) == 2


async def test_a_server_that_fails_once_is_asked_again_and_twice_is_no_reward(serve: Serve) -> None:
    _, settings = serve("Score: 1", fail_first=1)
    assert await ModelJudge(settings).rewards(rollout("four"), limit=30) == {"judge": 1.0}
    endpoint, settings = serve("Score: 1", fail_first=2, fail_status=503)
    with pytest.raises(RewardError, match=r"The judge at http://.* answered 503"):
        await ModelJudge(settings).rewards(rollout("four"), limit=30)
    assert len(endpoint.requests) == 2


async def test_nobody_there_is_no_reward() -> None:
    with pytest.raises(RewardError, match=r"The judge at http://127\.0\.0\.1:1/v1 cannot be reached"):
        await ModelJudge(SETTINGS).rewards(rollout("four"), limit=30)


async def test_a_judge_that_takes_too_long_is_no_reward(serve: Serve) -> None:
    _, settings = serve("Score: 1", delay=30.0)
    with pytest.raises(RewardError, match=r"still busy after 0\.3 seconds"):
        await ModelJudge(settings).rewards(rollout("four"), limit=0.3)


def score_by_answer(body: Any) -> str:
    """A judge that goes by what the answers say, wherever they stand in the question."""
    (question,) = said(body)
    shown = re.findall(r"^Answer \d:\n(.*)$", question, flags=re.MULTILINE)
    return "Scores: " + ", ".join({"five": "0.25", '{"answer": 4}': "1", "three": "0"}[answer] for answer in shown)


async def test_a_group_is_compared_in_one_question_and_each_answer_gets_its_own_score(serve: Serve) -> None:
    outputs = ("five", {"answer": 4}, "three")
    orders = set()
    for first in range(0, 60, 3):  # other rollouts, and so other groups
        endpoint, settings = serve(score_by_answer)
        group = [rollout(output, first + number) for number, output in enumerate(outputs)]
        rewards = await GroupJudge(settings).rewards(group, limit=30)
        assert rewards == [{"judge": 0.25}, {"judge": 1.0}, {"judge": 0.0}]
        (request,) = endpoint.requests
        (question,) = said(request.body)
        assert "3 numbers from 0" in question
        orders.add(tuple(re.findall(r"^Answer \d:\n(.*)$", question, flags=re.MULTILINE)))
    assert len(orders) > 1, "no place in the question is one answer's for ever"


async def test_too_few_scores_for_a_group_are_none_at_all(serve: Serve) -> None:
    _, settings = serve("Scores: 1", "Scores: 1")
    with pytest.raises(RewardError, match="gave no 2 scores from 0 to 1"):
        await GroupJudge(settings).rewards([rollout("a"), rollout("b", 1)], limit=30)
