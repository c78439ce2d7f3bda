"""A rollout of this process whose gateway is another process's, reached over HTTP."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from spangrad.capture._environment import KEY_VARIABLE, URL_VARIABLE
from spangrad.capture._gateway_client import GatewayClient
from spangrad.capture._ids import LONGEST_ID, problem_of_id
from spangrad.capture._infrastructure import is_infrastructure
from spangrad.capture._reward_list import RewardList
from spangrad.capture._scope import RolloutScope
from spangrad.capture._tracing import deliver_spans
from spangrad.capture._work import end_work
from spangrad.errors import GatewayError, TaskError
from spangrad.spans import Span, from_readable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

AD_HOC: Final = "ad-hoc"
"""Task of a rollout that names none."""
_SHOWN: Final = 60
"""Characters of a wrong id that an error repeats."""

_logger = logging.getLogger("spangrad.capture")


class RemoteRollout:
    """Collects the rollout's spans and sends what there is at its end.

    Args:
        scope: the rollout.
        gateway: the gateway it belongs to; closed with it.
        rewards: the rewards given in this process.
    """

    def __init__(self, scope: RolloutScope, gateway: GatewayClient, rewards: RewardList) -> None:
        self.scope = scope
        self._gateway = gateway
        self._rewards = rewards
        self._spans: list[Span] = []
        self._listening = ExitStack()
        self._listening.enter_context(deliver_spans(self._keep))

    @classmethod
    def open(cls, task_id: str | None, group_id: str | None) -> Self:
        """Opens a rollout at the gateway that the environment names.

        Raises:
            TaskError: an id cannot be one.
            GatewayError: it names none, or the gateway cannot be reached or refuses.
        """
        for name, given in (("task_id", task_id), ("group_id", group_id)):
            if given is not None and (problem := problem_of_id(given)) is not None:
                raise TaskError(
                    f"The {name} {ascii(given)[:_SHOWN]} {problem}",
                    cure=f"Give a text of 1 to {LONGEST_ID} characters, such as gsm8k/17",
                )
        url = os.environ.get(URL_VARIABLE)
        if not url:
            raise GatewayError(
                "There is no gateway to run this rollout against",
                cure=f"Start one with `spangrad gateway` and set {URL_VARIABLE} and {KEY_VARIABLE} to what it prints",
            )
        gateway = GatewayClient(url, os.environ.get(KEY_VARIABLE, ""))
        try:
            opened = gateway.open(task_id=task_id, group_id=group_id or task_id)
        except BaseException:
            gateway.close()
            raise
        rewards = RewardList(opened["rollout_id"])
        scope = RolloutScope(
            rollout_id=opened["rollout_id"],
            attempt=opened["attempt"],
            task_id=task_id or AD_HOC,
            base_url=opened["base_url"],
            api_key=opened["api_key"],
            gateway_url=url.rstrip("/"),
            reward_sink=rewards,
        )
        return cls(scope, gateway, rewards)

    def finish(self, error: BaseException | None) -> None:
        """Ends the work still open in it, sends what there is and ends the rollout; an error of the user's block comes before one of the gateway's.

        Args:
            error: what the user's block raised.

        Raises:
            GatewayError: the gateway cannot be reached or refuses, and `error` is None.
        """
        end_work(self.scope)
        self._listening.close()
        try:
            self._send_spans()
            self._end(error)
        except GatewayError as trouble:
            if error is None:
                raise
            _logger.warning("The end of rollout %s is not recorded: %s", self.scope.rollout_id, trouble)
        finally:
            self._gateway.close()

    def _keep(self, spans: Sequence[ReadableSpan]) -> None:
        key = (self.scope.rollout_id, self.scope.attempt)
        self._spans += [span for span in map(from_readable, spans) if (span.rollout_id, span.attempt) == key]

    def _send_spans(self) -> None:
        """Sends the spans; without them only the structure is missing, so rewards are not held up by it."""
        if not self._spans:
            return
        try:
            self._gateway.send_spans(self._spans, key=self.scope.api_key)
        except GatewayError as trouble:
            _logger.warning("The spans of rollout %s are not recorded: %s", self.scope.rollout_id, trouble)

    def _end(self, error: BaseException | None) -> None:
        for reward in self._rewards.close():
            self._gateway.reward(self.scope.rollout_id, self.scope.attempt, reward)
        status, text = _ending(error)
        self._gateway.finish(self.scope.rollout_id, self.scope.attempt, status, text)


def _ending(error: BaseException | None) -> tuple[str, str]:
    """Status and error text of a rollout whose block was left this way."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "succeeded", ""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    if is_infrastructure(error):
        return "infrastructure", text
    return ("failed" if isinstance(error, Exception | SystemExit) else "lost"), text
