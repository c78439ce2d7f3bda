"""Every error spangrad raises on purpose.

    SpangradError
    ├── ConfigError              a setting that is wrong, unknown or would do nothing
    ├── PluginError              an extension that is missing, broken or of the wrong version
    │   └── OtherModuleError     a module has a framework's name, but is not that framework
    ├── AgentError               the user's agent cannot be imported or called
    ├── InfrastructureError      raised by an agent: what it depends on broke, through no fault of its own
    ├── RewardError              a reward that is not a finite number
    ├── StateError               a state of an agent, or its score, that cannot be recorded
    ├── TaskError                a task file or function that cannot be read
    ├── BackendError             the training backend cannot do what was asked
    │   ├── ModelNotFoundError   no model under that name or folder
    │   └── TokenIdsMissingError an endpoint answered without token ids
    ├── RouteError               a call names a model that no route serves
    ├── GatewayError             the server agents talk to cannot start or answer
    ├── SpanError                a span or trace that is not what it should be
    ├── StoreError               the store cannot be opened or written
    ├── RunFolderError           a run's folder cannot be written, or another process is working in it
    └── CheckpointError          a checkpoint is missing, damaged or of another run

Each message says what happened and, in `cure`, what to do about it. The command line prints both and exits with status 2
for `ConfigError`, `PluginError`, `AgentError` and `TaskError` (nothing was started) and 1 for the rest.
"""

from __future__ import annotations


class SpangradError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what happened, as a full sentence without its full stop.
        cure: what the user can do about it; printed on its own line.
    """

    exit_status = 1

    def __init__(self, what: str, *, cure: str = "") -> None:
        super().__init__(what, cure)
        self.what = what
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.what}. {self.cure}" if self.cure else self.what

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.cure))


def _rebuild(cls: type[SpangradError], what: str, cure: str) -> SpangradError:
    """Unpickles an error; keyword-only arguments do not survive the default protocol."""
    return cls(what, cure=cure)


class ConfigError(SpangradError, ValueError):
    """A setting that is wrong, unknown or would do nothing."""

    exit_status = 2


class PluginError(SpangradError, LookupError):
    """An extension that is missing, broken or of the wrong version."""

    exit_status = 2


class OtherModuleError(PluginError):
    """A module has a framework's name, but is not that framework: to a program that does not use the framework it is nothing amiss."""


class AgentError(SpangradError):
    """The user's agent cannot be imported or called."""

    exit_status = 2


class InfrastructureError(SpangradError, RuntimeError):
    """Raised by an agent, or a tool of it, when something it depends on is broken: a database that is down, a sandbox that will
    not start. The rollout then ends as `infrastructure`, and not as a failure of the agent.
    """


class StateError(SpangradError, ValueError):
    """A state of an agent, or its score, that cannot be recorded."""


class TaskError(SpangradError, ValueError):
    """A task file or function that cannot be read."""

    exit_status = 2


class RewardError(SpangradError, ValueError):
    """A reward that is not a finite number."""


class BackendError(SpangradError, RuntimeError):
    """The training backend cannot do what was asked."""


class ModelNotFoundError(BackendError, LookupError):
    """No model under that name or folder."""


class TokenIdsMissingError(BackendError):
    """An endpoint answered without the token ids training needs."""


class RouteError(SpangradError, LookupError):
    """A call names a model that no route serves."""


class GatewayError(SpangradError, RuntimeError):
    """The server agents talk to cannot start or answer."""


class SpanError(SpangradError, ValueError):
    """A span or trace that is not what it should be."""


class StoreError(SpangradError, OSError):
    """The store cannot be opened or written."""


class RunFolderError(SpangradError, OSError):
    """A run's folder cannot be written, or another process is working in it."""


class CheckpointError(SpangradError, RuntimeError):
    """A checkpoint is missing, damaged or of another run."""
