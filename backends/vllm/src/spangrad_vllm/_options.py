"""The sampler's own table, `[torch.vllm]` in train.toml beside the torch backend. Imports no vLLM."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_OURS: Final = {
    "api-key": "the learner could not reach the server's other routes with it",
    "dtype": "dtype",
    "enable-lora": "the backend's adapter",
    "generation-config": "answers are drawn as the agent and train.toml say",
    "gpu-memory-utilization": "gpu_memory",
    "host": "servers listen on this machine only, since they take orders without a key",
    "logprobs-mode": "log-probabilities have to be those that answers are drawn with",
    "lora-modules": "the backend's adapter",
    "max-cpu-loras": "the backend's adapter",
    "max-lora-rank": "the backend's adapter",
    "max-loras": "the backend's adapter",
    "max-model-len": "context",
    "model": "the backend's model",
    "port": "servers take free ports",
    "seed": "training.seed",
    "served-model-name": "names are the sampler's own",
    "tensor-parallel-size": "gpus_per_server",
    "tokenizer": "the backend's model",
}
"""Options of vLLM that cannot be passed through, and what to set instead, or why not."""
_STARTING: Final = (
    "python",
    "servers",
    "gpus",
    "gpus_per_server",
    "gpu_memory",
    "cpu_cache_gb",
    "dtype",
    "flags",
    "environment",
    "log_folder",
)
"""Settings of servers that we start; with `urls` they would do nothing."""

Flag = bool | int | float | str


def _of_this_machine(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in _LOOPBACK or parts.port is None:
        raise ValueError(
            "a server to attach to is on this machine, such as http://127.0.0.1:8000: weights go over in a folder, and the routes "
            "that change them take orders without a key"
        )
    if parts.path.strip("/"):
        raise ValueError("give the address alone, without /v1 or another path")
    return f"http://{parts.netloc}"


class VllmOptions(BaseModel):
    """How vLLM servers are started, or which are attached to."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    python: str | None = Field(default=None, min_length=1)
    """Python of the environment that vLLM is installed in; left out, this one."""
    urls: tuple[Annotated[str, AfterValidator(_of_this_machine)], ...] = Field(default=(), strict=False)
    """Attach to these servers, started elsewhere on this machine, and start none."""
    servers: int = Field(default=1, ge=1, le=64)
    """How many to start. Without adapters each policy has so many of its own."""
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), strict=False)
    """Numbers of the GPUs that the servers are spread over in turn; left out, those that the environment shows."""
    gpus_per_server: int | None = Field(default=None, ge=1)
    """Split the model over so many GPUs (tensor parallelism); 1 if left out."""
    gpu_memory: float | None = Field(default=None, gt=0, lt=1)
    """Share of a GPU's memory that a server takes; 0.4 if left out, so that a learner fits beside it."""
    cpu_cache_gb: int | None = Field(default=None, ge=1)
    """Gigabytes for keys and values where vLLM computes on the CPU; 1 if left out."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the served weights. auto is float32 on a CPU and bfloat16 on a GPU."""
    context: int | None = Field(default=None, ge=2)
    """Most tokens of a prompt and its answer; left out, the model's."""
    flags: dict[str, Flag] = Field(default_factory=dict)
    """Further options of vLLM's server, such as max-num-seqs = 128; true and false are for switches."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Further environment variables of the servers."""
    start_timeout: float = Field(default=900.0, gt=0, strict=False)
    """Seconds until a server must answer: it loads the model first, and on a GPU compiles it."""
    weights_timeout: float = Field(default=600.0, gt=0, strict=False)
    """Seconds that taking new weights may last."""
    log_folder: str | None = Field(default=None, min_length=1)
    """Where the servers' logs are kept; left out, they are temporary files."""

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        idle = [name for name in _STARTING if self.urls and name in self.model_fields_set]
        if idle:
            raise ValueError(f"{', '.join(idle)} would do nothing: with urls no server is started")
        taken = [name for name in self.flags if _plain(name) in _OURS]
        if taken:
            hints = "; ".join(f"{name}: {_OURS[_plain(name)]}" for name in taken)
            raise ValueError(f"flags may not hold what is decided elsewhere ({hints})")
        if self.gpus and len(self.gpus) % (self.gpus_per_server or 1):
            raise ValueError(f"{len(self.gpus)} gpus cannot be shared out {self.gpus_per_server} to a server")
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError("gpus names one twice")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls names one twice")
        return self

    def filled_in(self) -> dict[str, Any]:
        """All settings that do something, defaults included; gives an equal object when read again."""
        return self.model_dump(mode="json", exclude=set(_STARTING) if self.urls else set())


def _plain(flag: str) -> str:
    """An option's name as vLLM's help writes it; `no-` turns a switch off."""
    name = flag.lstrip("-").replace("_", "-").lower()
    return name.removeprefix("no-")
