"""What draws answers, as the backend's table says: a sampler of this package, or servers that another plug-in brings.

The other plug-in's settings are a table within ours, under its name. It validates them itself, and its errors are told with ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from spangrad.backend import SamplerFactory
from spangrad.errors import PluginError
from spangrad.plugins import load_plugins
from spangrad_torch._options import OWN_SAMPLERS, TorchOptions


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The backend's table, validated."""

    torch: TorchOptions
    servers: SamplerFactory | None = None
    """Starts what draws answers; None for a sampler of this package."""
    table: Mapping[str, Any] | None = None
    """Of its settings, with defaults filled in."""

    def filled_in(self) -> dict[str, Any]:
        """All settings that do something, defaults included; gives the same when read again."""
        return self.torch.filled_in() | ({} if self.servers is None else {self.torch.sampler: self.table})


def read_options(options: Mapping[str, Any]) -> CheckedOptions:
    """Validates the table.

    Raises:
        pydantic.ValidationError: wrong or unknown options, of the servers too, all of them at once.
    """
    own, name = dict(options), options.get("sampler")
    factory: SamplerFactory | None = None
    table: Mapping[str, Any] | None = None
    errors: list[InitErrorDetails] = []
    if isinstance(name, str) and name and name not in OWN_SAMPLERS:
        given = own.pop(name, {})
        try:
            factory = load_plugins(builtin=False, quiet=True).samplers.get(name)
            table = factory.check(_as_table(given))
        except PluginError as error:
            errors.append(_one("sampler", name, str(error)))
        except TypeError as error:
            errors.append(_one(name, given, str(error)))
        except ValidationError as error:
            errors += _within(name, error)
    try:
        torch = TorchOptions.model_validate(own)
    except ValidationError as error:
        errors = [*_within(None, error), *errors]
        raise ValidationError.from_exception_data(error.title, errors) from None
    if errors:
        raise ValidationError.from_exception_data("TorchOptions", errors)
    return CheckedOptions(torch, factory, table)


def _as_table(given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError("this is a table of the sampler's settings")
    return given


def _one(key: str, given: object, what: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("sampler", "{what}", {"what": what}), loc=(key,), input=given)


def _within(name: str | None, error: ValidationError) -> list[InitErrorDetails]:
    """An error's parts as those of a table of that name, or as they are."""
    return [
        InitErrorDetails(
            type=PydanticCustomError("setting", "{what}", {"what": part["msg"]}),
            loc=part["loc"] if name is None else (name, *part["loc"]),
            input=part["input"],
        )
        for part in error.errors(include_url=False)
    ]
