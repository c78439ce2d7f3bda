"""The plug-in: registers the backend's name and factory. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spangrad.backend import CORRECTIONS, LOSSES, Backend, Capabilities, ChatFormat
from spangrad.plugins import Register, hookimpl
from spangrad_torch._options import TorchOptions

if TYPE_CHECKING:
    from spangrad.backend import BackendFactory


class TorchFactory:
    """Makes torch backends; see `spangrad.backend.BackendFactory`."""

    capabilities = Capabilities(
        estimator_levels=frozenset({"transition", "token"}),
        losses=frozenset(LOSSES),
        kl_forms=frozenset({"k1", "k2", "k3"}),
        corrections=frozenset(CORRECTIONS),
        entropy_bonus=True,
        decoupled=True,
        adapters=True,
        values=True,
    )

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validates the backend's table of train.toml and fills in the defaults.

        Raises:
            pydantic.ValidationError: wrong or unknown options, all of them at once.
        """
        return TorchOptions.model_validate(dict(options)).model_dump(mode="json")

    def may_mismatch(self, options: Mapping[str, Any]) -> bool:
        """In fp32 sampler and learner agree to rounding; auto may choose bf16, in which they do not."""
        return TorchOptions.model_validate(dict(options)).precision != "fp32"

    def chat_format(self, options: Mapping[str, Any]) -> ChatFormat:
        """Loads the model's tokenizer and chat template, but no weights.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: the tokenizer has no chat template that can be used.
        """
        from spangrad_torch._backend import load_chat_format  # noqa: PLC0415 - torch is imported only when something is loaded

        return load_chat_format(TorchOptions.model_validate(dict(options)))

    def create(self, options: Mapping[str, Any], *, seed: int) -> Backend:
        """Loads the model; takes seconds, and measures the machine where an option says auto.

        Args:
            options: the backend's table, with or without defaults filled in.
            seed: of everything random here: the adapter's first weights and answers sampled without a seed.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: the device is missing or the model is of a kind that cannot be trained here.
        """
        from spangrad_torch._backend import TorchBackend  # noqa: PLC0415 - torch is imported only when a model is loaded

        return TorchBackend.load(TorchOptions.model_validate(dict(options)), seed=seed)


if TYPE_CHECKING:
    _: BackendFactory = TorchFactory()


@hookimpl
def spangrad_register(register: Register) -> None:
    """Brings the backend `torch`."""
    register.backend("torch", TorchFactory())
