"""The learner's workers on Ray, as verl's own worker group."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Expired
from typing import Any, Self

import ray
from omegaconf import OmegaConf
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from spangrad.errors import BackendError
from spangrad_verl._actor_worker import ActorWorker
from spangrad_verl._failures import explained


class RayWorkers:
    """Workers, each on a GPU of its own, and the Ray that was started for them.

    Args:
        group: the workers.
        owns_ray: Ray was started, or joined, for them, and is left when they are closed.
    """

    def __init__(self, group: RayWorkerGroup, *, owns_ray: bool) -> None:
        self.group = group
        self._owns_ray = owns_ray
        self._closed = False

    @classmethod
    def start(cls, verl: Any, config: Any, *, timeout: float) -> Self:
        """Starts Ray, or joins the cluster of RAY_ADDRESS, and the workers with the model in them.

        Args:
            verl: verl's whole configuration, composed.
            config: of a worker.
            timeout: seconds until Ray must have placed the workers.

        Raises:
            BackendError: it does not start, has too little for the workers, or a worker cannot load the model.
        """
        owns_ray = not ray.is_initialized()
        if owns_ray:
            _begin_ray(verl)
        try:
            with explained():
                group = _in_time(verl, config, timeout)
                group.reset()
        except BaseException:  # Ctrl-C too
            if owns_ray:
                ray.shutdown()
            raise
        return cls(group, owns_ray=owns_ray)

    def close(self) -> None:
        """Ends the workers. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        for worker in self.group.workers:
            ray.kill(worker)
        for placed in self.group.resource_pool.get_placement_groups():
            ray.util.remove_placement_group(placed)
        if self._owns_ray:
            ray.shutdown()


def _begin_ray(verl: Any) -> None:
    """Starts Ray, or joins the cluster of RAY_ADDRESS.

    Raises:
        BackendError: it does not start in time, or takes no such options.
    """
    options = OmegaConf.merge({"runtime_env": get_ppo_ray_runtime_env(verl)}, verl.ray_kwargs.ray_init)
    given = {"log_to_driver": False, "logging_level": "WARNING", **OmegaConf.to_container(options, resolve=True)}
    try:
        ray.init(**given)
    except Exception as error:  # Ray raises a bare Exception where a part of it has not started in time
        ray.shutdown()
        raise BackendError(
            f"Ray does not start: {error}",
            cure="It gives itself 30 s, which a busy machine may not keep: try again. Its logs are in /tmp/ray/session_latest/logs, "
            "options of ray.init in [verl.ray_kwargs.ray_init]",
        ) from error


def _in_time(verl: Any, config: Any, timeout: float) -> RayWorkerGroup:
    """The worker group; verl waits for a place without end, and so it waits in a thread that the process does not wait for."""
    trainer = verl.trainer
    on_gpu = trainer.device != "cpu"
    need = "GPU" if on_gpu else "CPU"
    wanted = int(trainer.n_gpus_per_node) * int(trainer.nnodes)
    there = ray.cluster_resources().get(need, 0)
    if there < wanted:
        raise BackendError(
            f"The learner needs {wanted} {need}s, and Ray has {there:g}",
            cure="Lower n_gpus_per_node or nnodes in [verl.trainer], or add machines to the cluster",
        )
    pool = RayResourcePool([int(trainer.n_gpus_per_node)] * int(trainer.nnodes), use_gpu=on_gpu, max_colocate_count=1)
    workers = RayClassWithInitArgs(ray.remote(ActorWorker), config=config)
    made: Future[RayWorkerGroup] = Future()

    def make() -> None:
        try:
            made.set_result(RayWorkerGroup(pool, workers, device_name=trainer.device))
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            made.set_exception(error)

    threading.Thread(target=make, name="spangrad-verl-start", daemon=True).start()
    try:
        return made.result(timeout)
    except Expired as error:
        raise BackendError(
            f"Ray has not given the learner its {wanted} {need}s within {timeout:g} s",
            cure="See `ray status`: others may hold them. Free them, or raise start_timeout in [verl]",
        ) from error
