"""The plug-in: registers the sampler's name and factory. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spangrad.backend import Served, ServedModel
from spangrad.plugins import Register, hookimpl
from spangrad_vllm._options import VllmOptions

if TYPE_CHECKING:
    from spangrad.backend import SamplerFactory


class VllmFactory:
    """Starts vLLM servers; see `spangrad.backend.SamplerFactory`."""

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Validates the sampler's table and fills in the defaults.

        Raises:
            pydantic.ValidationError: wrong or unknown options, all of them at once.
        """
        return VllmOptions.model_validate(dict(options)).filled_in()

    def require(self, options: Mapping[str, Any]) -> None:
        """Makes sure that vLLM is installed, of a supported version, and has a device to compute on.

        Raises:
            BackendError: it is not, with the way to get it.
        """
        from spangrad_vllm._installation import require_installation  # noqa: PLC0415 - only when something is started

        checked = VllmOptions.model_validate(dict(options))
        if not checked.urls:
            require_installation(checked)

    def start(self, options: Mapping[str, Any], model: ServedModel) -> Served:
        """Starts the servers, or attaches to running ones; takes a minute or several.

        Raises:
            BackendError: they do not start, or cannot serve this model.
        """
        from spangrad_vllm._servers import VllmServers  # noqa: PLC0415 - as above

        return VllmServers.start(VllmOptions.model_validate(dict(options)), model)


if TYPE_CHECKING:
    _: SamplerFactory = VllmFactory()


@hookimpl
def spangrad_register(register: Register) -> None:
    """Brings the sampler `vllm`."""
    register.sampler("vllm", VllmFactory())
