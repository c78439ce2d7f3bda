"""The rollout as the code inside it sees it."""

from __future__ import annotations

from spangrad.capture._agent_state import enter_state
from spangrad.capture._reward_value import reward_value
from spangrad.capture._scope import RolloutScope
from spangrad.errors import RewardError


class Rollout:
    """One attempt of one rollout, while it runs.

    `base_url` and `api_key` are what an OpenAI client needs where it is not pointed at the gateway already:
    `OpenAI(base_url=r.base_url, api_key=r.api_key)`.
    """

    def __init__(self, scope: RolloutScope) -> None:
        self.scope = scope

    @property
    def id(self) -> str:
        """The rollout's id; the store and `spangrad explain` know it by this."""
        return self.scope.rollout_id

    @property
    def attempt(self) -> int:
        """Which try at the rollout this is, from 1."""
        return self.scope.attempt

    @property
    def task_id(self) -> str:
        """The task it is run on."""
        return self.scope.task_id

    @property
    def base_url(self) -> str:
        """The rollout's own OpenAI-compatible URL."""
        return self.scope.base_url

    @property
    def api_key(self) -> str:
        """The rollout's own key; it can call the model and nothing else."""
        return self.scope.api_key

    def reward(self, value: object, name: str = "reward", call_id: str | None = None) -> None:
        """Rewards the rollout, or one call of it.

        Several rewards add up; `name` tells them apart in reports. They are written when the rollout ends.

        Args:
            value: a finite number, or a bool (1 or 0).
            name: which component of the reward it is.
            call_id: the call it rewards; None rewards the rollout as a whole.

        Raises:
            RewardError: the value is no finite number, the rollout has ended, or this process may not reward it.
        """
        number = reward_value(value, giver=f"The reward {name!r} of rollout {self.id}")
        if self.scope.reward_sink is None:
            raise RewardError(
                f"Rollout {self.id} was started by the runner, and a command cannot reward itself",
                cure="Print the reward as the last line of output, or name a reward function",
            )
        self.scope.reward_sink(number, name, call_id)

    def state(self, key: str | None, score: float | None = None) -> None:
        """Names the state of the agent's environment that the calls from here on are made in.

        Some credit assigners compare what rollouts of one task did in equal states, or how a call changed the score. The
        state holds in this context until another one is named: parallel tasks each have their own and begin with that of the
        task which started them; threads begin with it as they begin with OpenTelemetry's context. It goes with calls of the
        clients that an integration hooks into; others send the headers `x-spangrad-state` and `x-spangrad-score`.

        Args:
            key: a text of at most 1000 characters, equal for equal states; None where the state is not known any more.
            score: how far along the agent is in this state, on any scale that is the same in all rollouts of a task.

        Raises:
            StateError: one of them cannot be recorded; the state stays what it was.
        """
        enter_state(self.scope, key, score)

    def __repr__(self) -> str:
        return f"Rollout({self.id!r}, attempt={self.attempt}, task_id={self.task_id!r})"
