"""spangrad trains the LLM agents people already have.

```python
with spangrad.rollout(task_id="17") as r:
    answer = agent(question)
    r.reward(score(answer))
```

Names are imported when they are first used, so that `import spangrad` costs an agent nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from spangrad.errors import InfrastructureError, SpangradError

if TYPE_CHECKING:
    from spangrad.capture import Rollout, RolloutScope, current_scope, rollout
    from spangrad.plugins import hookimpl
    from spangrad.rollouts import Task

    __version__: str

__all__ = [
    "InfrastructureError",
    "Rollout",
    "RolloutScope",
    "SpangradError",
    "Task",
    "__version__",
    "current_scope",
    "hookimpl",
    "rollout",
]

_HOMES: Final = {
    "Rollout": "spangrad.capture",
    "RolloutScope": "spangrad.capture",
    "Task": "spangrad.rollouts",
    "current_scope": "spangrad.capture",
    "hookimpl": "spangrad.plugins",
    "rollout": "spangrad.capture",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("spangrad")
    if name not in _HOMES:
        raise AttributeError(f"module 'spangrad' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
