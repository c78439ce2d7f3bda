"""The plug-in: registers the backend's name and factory. Imports neither torch nor verl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spangrad.backend import CORRECTIONS, LOSSES, SOLE_POLICY, Backend, Capabilities, ChatFormat
from spangrad.plugins import Register, hookimpl

if TYPE_CHECKING:
    from spangrad.backend import BackendFactory


class VerlFactory:
    """Makes verl backends; see `spangrad.backend.BackendFactory`."""

    capabilities = Capabilities(
        estimator_levels=frozenset({"transition", "token"}),
        losses=frozenset(LOSSES) - {"gspo"},  # verl has gspo_token, which is the same while a call has one advantage
        kl_forms=frozenset({"k1", "k2", "k3"}),
        corrections=frozenset(CORRECTIONS),
        entropy_bonus=True,
        decoupled=True,
        initial=True,
    )

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validates the backend's table of train.toml by verl's own configuration, and fills in the defaults.

        Raises:
            pydantic.ValidationError: wrong or unknown options, all of them at once.
            PluginError: verl is missing or is a version that is not supported.
        """
        from spangrad_verl._checked import read_options  # noqa: PLC0415 - it needs verl, which may be missing

        return read_options(options).filled_in()

    def may_mismatch(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002 - whatever they say
        """Always: verl and vLLM compute with kernels of their own."""
        return True

    def chat_format(self, options: Mapping[str, Any]) -> ChatFormat:
        """Loads the model's tokenizer and chat template, but no weights.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: the tokenizer has no chat template that can be used.
        """
        from spangrad_verl._model_folder import ModelFolder  # noqa: PLC0415 - it imports transformers

        return ModelFolder.find(str(options["model"])).chat_format

    def create(
        self,
        options: Mapping[str, Any],
        *,
        seed: int,
        policies: Sequence[str] = (SOLE_POLICY,),
        initial: bool = False,
    ) -> Backend:
        """Starts Ray, the learner's workers and the servers that draw; takes minutes.

        Args:
            options: the backend's table, with or without defaults filled in.
            seed: of everything random.
            policies: the name of the one policy.
            initial: also serve the model as it was loaded.

        Raises:
            ModelNotFoundError: no such model, with the way to get it.
            BackendError: a GPU, memory or a part is missing, said before anything is started; or something does not start.
        """
        from spangrad_verl._backend import VerlBackend  # noqa: PLC0415 - torch and verl are imported only when something starts
        from spangrad_verl._checked import read_options  # noqa: PLC0415

        (policy,) = policies
        return VerlBackend.start(read_options(options), seed=seed, policy=policy, initial=initial)


if TYPE_CHECKING:
    _: BackendFactory = VerlFactory()


@hookimpl
def spangrad_register(register: Register) -> None:
    """Brings the backend `verl`."""
    register.backend("verl", VerlFactory())
