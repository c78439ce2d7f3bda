"""What goes wrong in the learner's workers, as errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import RayActorError, RayError, RayTaskError

from spangrad.errors import BackendError


@contextmanager
def explained() -> Iterator[None]:
    """A block whose errors of Ray's become ours.

    Raises:
        BackendError: a worker has died, or its work failed; with the cause.
    """
    try:
        yield
    except RayTaskError as error:
        told = str(error.cause) or type(error.cause).__name__
        raise BackendError(f"A worker of the learner failed: {told}", cure="See its traceback below") from error
    except RayActorError as error:
        raise BackendError(
            f"A worker of the learner has died: {error}",
            cure="If its memory ran out: lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu or set "
            "actor_rollout_ref.actor.fsdp_config.param_offload and optimizer_offload in [verl]; then go on with --resume",
        ) from error
    except RayError as error:
        raise BackendError(f"Ray failed: {error}", cure="Go on with --resume once the cluster is well") from error
