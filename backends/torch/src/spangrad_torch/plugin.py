"""The plug-in: registers the backend's name and factory. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spangrad.backend import CORRECTIONS, LOSSES, SOLE_POLICY, Backend, Capabilities, ChatFormat, ChecksMachine
from spangrad.plugins import Register, hookimpl
from spangrad_torch._sampler_choice import read_options

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
        several_policies=True,
        initial=True,
        values=True,
    )

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validates the backend's table of train.toml and fills in the defaults.

        Raises:
            pydantic.ValidationError: wrong or unknown options, all of them at once, those of the servers that draw answers too.
        """
        return read_options(options).filled_in()

    def may_mismatch(self, options: Mapping[str, Any]) -> bool:
        """In fp32 our samplers and the learner agree to rounding; auto may choose bf16, in which they do not. Servers compute in ways
        of their own.
        """
        checked = read_options(options).torch
        return checked.served or checked.precision != "fp32"

    def require(self, options: Mapping[str, Any]) -> None:
        """Makes sure that the device is here, and what servers need; see `spangrad.backend.ChecksMachine`.

        Raises:
            BackendError: it is not, with the cure.
        """
        checked = read_options(options)
        if checked.torch.device == "cuda" or checked.torch.tree_attention == "flex":
            from spangrad_torch._backend import required_device  # noqa: PLC0415 - nothing else is asked of torch here

            required_device(checked.torch)
        if checked.servers is not None:
            checked.servers.require(checked.table or {})

    def chat_format(self, options: Mapping[str, Any]) -> ChatFormat:
        """Loads the model's tokenizer and chat template, but no weights.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: the tokenizer has no chat template that can be used.
        """
        from spangrad_torch._backend import load_chat_format  # noqa: PLC0415 - torch is imported only when something is loaded

        return load_chat_format(read_options(options).torch)

    def create(
        self,
        options: Mapping[str, Any],
        *,
        seed: int,
        policies: Sequence[str] = (SOLE_POLICY,),
        initial: bool = False,
    ) -> Backend:
        """Loads the model; takes seconds, and measures the machine where an option says auto.

        Args:
            options: the backend's table, with or without defaults filled in.
            seed: of everything random here: the adapters' first weights and answers sampled without a seed.
            policies: names of the policies. With adapters they share the model's weights.
            initial: also serve the model as it was loaded; without adapters this costs a copy of its weights.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: the device is missing, the model is of a kind that cannot be trained here, or the servers that are to draw
                answers lack something or do not start.
        """
        from spangrad_torch._backend import TorchBackend  # noqa: PLC0415 - torch is imported only when a model is loaded

        checked = read_options(options)
        serve = None
        if checked.servers is not None:
            checked.servers.require(checked.table or {})  # before the model is loaded, which may take long
            serve = partial(checked.servers.start, checked.table or {})
        return TorchBackend.load(checked.torch, seed=seed, policies=policies, initial=initial, serve=serve)


if TYPE_CHECKING:
    _: BackendFactory = TorchFactory()
    _checks: ChecksMachine = TorchFactory()


@hookimpl
def spangrad_register(register: Register) -> None:
    """Brings the backend `torch`."""
    register.backend("torch", TorchFactory())
