"""Configuration: one frozen dataclass per process, filled from defaults, then the environment, then flags.

Everything is checked at the start and every fault is told in one message, so that nobody fixes them one by
one. A field's `metadata` documents it, and `--help` prints it:

    port: int = field(default=7410, metadata={"help": "gRPC port; 0 takes a free one", "min": 0})

Keys of `metadata`: `help` (unit, default, why), `secret` (never shown), `min`, `max`, `choices`.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from libs.common.errors import Invalid
from libs.common.names import shown
from libs.common.service_config import ServiceConfig as ServiceConfig
from libs.common.suggest import did_you_mean

T = TypeVar("T")

# Kubernetes puts these beside our own when a Service bears our name (its "service links").
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_.*")
_MISSING = object()


class ConfigError(Invalid):
    """The configuration can't be used; `faults` holds one line for each thing that is wrong."""

    default_reason = "BAD_CONFIG"

    def __init__(self, faults: Sequence[str]) -> None:
        lines = "".join(f"\n  {fault}" for fault in faults)
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(f"{count} in the configuration:{lines}")
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigError, (self.faults,)


class HelpRequested(Exception):
    """`--help` was among the flags; `str()` of it is the text to print."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    """One field of a configuration class, with its names outside."""

    field: str
    env: str
    flag: str
    type: Any
    optional: bool
    metadata: Mapping[str, Any]
    default: object

    @property
    def secret(self) -> bool:
        return bool(self.metadata.get("secret"))

    def show(self, value: object) -> str:
        return "(secret)" if self.secret else shown(str(value))


def load(cls: type[T], prefix: str, argv: Sequence[str], environ: Mapping[str, str]) -> T:
    """Return a `cls` from its defaults, `ISTHMUS_<PREFIX>_<FIELD>` variables and `--field-name` flags.

    Flags win over the environment. Booleans take `--flag`, `--no-flag` or `--flag=false`; tuples take commas
    or the flag again; an empty text means None where the field may be None.

    Args:
        cls: a dataclass whose fields are str, int, float, bool, Path, tuple[str, ...] or one of them or None.
        prefix: the process's name, such as "deployer".
        argv: the arguments after the program's name.
        environ: the environment.

    Raises:
        ConfigError: telling every fault at once.
        HelpRequested: when `--help` or `-h` is among the arguments.
    """
    settings = _settings(cls, prefix)
    if any(argument in ("--help", "-h") for argument in argv):
        raise HelpRequested(help_text(cls, prefix))
    faults: list[str] = []
    texts = _from_environment(settings, prefix, environ, faults)
    texts.update(_from_flags(settings, argv, faults))
    values: dict[str, object] = {}
    for setting in settings:
        if setting.field in texts:
            source, text = texts[setting.field]
            try:
                values[setting.field] = _convert(setting, text)
            except ValueError as error:
                faults.append(f"{source}: {setting.show(text)} {error}")
        elif setting.default is _MISSING:
            faults.append(f"{setting.flag}: missing; give it or set {setting.env}")
    if faults:
        raise ConfigError(faults)
    config = cls(**values)
    faults = [fault for check in _validators(cls) for fault in check(config)]
    if faults:
        raise ConfigError(faults)
    return config


def help_text(cls: type[Any], prefix: str) -> str:
    """Return what `--help` prints: every flag with its type, variable, default and meaning."""
    lines = [(cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else "", ""]
    for setting in _settings(cls, prefix):
        kind = "text" if setting.type is str else getattr(setting.type, "__name__", "texts,…")
        if setting.default is _MISSING:
            default = "required"
        elif setting.secret:
            default = "secret"
        else:
            default = (
                f"default {setting.default!s}" if setting.default not in ("", None, ()) else "default none"
            )
        lines.append(f"  {setting.flag} <{kind}>  ({default}; {setting.env})")
        if setting.metadata.get("help"):
            lines.append(f"      {setting.metadata['help']}")
    return "\n".join(lines)


def redacted(config: Any) -> dict[str, object]:
    """Return the configuration for a log: plain values, secrets replaced by "***"."""
    out: dict[str, object] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("secret") and value:
            value = "***"
        out[field.name] = str(value) if isinstance(value, Path) else value
    return out


def _settings(cls: type[Any], prefix: str) -> list[_Setting]:
    hints = typing.get_type_hints(cls)
    settings = []
    for field in dataclasses.fields(cls):
        hint, optional = hints[field.name], False
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            inner = [argument for argument in typing.get_args(hint) if argument is not type(None)]
            hint, optional = (inner[0], True) if len(inner) == 1 else (hint, False)
        if hint not in _CONVERTERS:
            raise TypeError(f"{cls.__name__}.{field.name}: a configuration field can't be {hint}")
        default = field.default
        if default is dataclasses.MISSING:
            default = _MISSING
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
        settings.append(
            _Setting(
                field=field.name,
                env=f"ISTHMUS_{prefix}_{field.name}".upper().replace("-", "_"),
                flag="--" + field.name.replace("_", "-"),
                type=hint,
                optional=optional,
                metadata=field.metadata,
                default=default,
            )
        )
    return settings


def _from_environment(
    settings: Sequence[_Setting], prefix: str, environ: Mapping[str, str], faults: list[str]
) -> dict[str, tuple[str, str]]:
    known = {setting.env: setting.field for setting in settings}
    start = f"ISTHMUS_{prefix}_".upper().replace("-", "_")
    found: dict[str, tuple[str, str]] = {}
    for name in sorted(environ):
        if name in known:
            found[known[name]] = (name, environ[name])
        elif name.startswith(start) and not _SERVICE_LINK.fullmatch(name.removeprefix(start)):
            faults.append(f"{name}: no such setting{did_you_mean(name, known)}")
    return found


def _from_flags(
    settings: Sequence[_Setting], argv: Sequence[str], faults: list[str]
) -> dict[str, tuple[str, str]]:
    by_flag = {setting.flag: setting for setting in settings}
    negated = {"--no-" + s.flag.removeprefix("--"): s for s in settings if s.type is bool}
    found: dict[str, tuple[str, str]] = {}
    arguments = list(reversed(argv))
    while arguments:
        argument = arguments.pop()
        flag, equals, text = argument.partition("=")
        setting = by_flag.get(flag)
        if setting is None:
            if flag in negated and not equals:
                found[negated[flag].field] = (flag, "false")
            elif argument.startswith("-"):
                faults.append(f"{shown(flag)}: no such flag{did_you_mean(flag, [*by_flag, *negated])}")
                # Its value, if it has one, would only be told as a second fault.
                if not equals and arguments and not arguments[-1].startswith("-"):
                    arguments.pop()
            else:
                faults.append(f"{shown(argument)}: unexpected; settings are given as --name value")
            continue
        if not equals:
            if setting.type is bool:
                text = "true"
            elif arguments and not arguments[-1].startswith("--"):
                text = arguments.pop()
            else:
                faults.append(f"{flag}: no value; write {flag} VALUE")
                continue
        if setting.type == tuple[str, ...] and setting.field in found:
            text = f"{found[setting.field][1]},{text}"
        found[setting.field] = (flag, text)
    return found


def _convert(setting: _Setting, text: str) -> object:
    if setting.optional and not text:
        return None
    value = _CONVERTERS[setting.type](text)
    low, high = setting.metadata.get("min"), setting.metadata.get("max")
    if (low is not None and value < low) or (high is not None and value > high):
        if low is None or high is None:
            raise ValueError(
                f"is out of range; use {'at most' if low is None else 'at least'} "
                f"{high if low is None else low}"
            )
        raise ValueError(f"is out of range; use {low} to {high}")
    choices = setting.metadata.get("choices")
    if choices and value not in choices:
        raise ValueError(f"is not one of {', '.join(choices)}{did_you_mean(str(value), choices)}")
    return value


def _validators(cls: type[Any]) -> list[Callable[[Any], Iterable[str]]]:
    # Each class's own `validate` is called, the bases' first: a subclass adds checks and can't forget to
    # call its base (zero-argument super() doesn't work in slotted dataclasses).
    return [vars(base)["validate"] for base in reversed(cls.__mro__) if "validate" in vars(base)]


def _to_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number; write it as 1234") from None


def _to_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("is not a number; write it as 1.5")
    return value


def _to_bool(text: str) -> bool:
    lower = text.strip().lower()
    if lower in ("true", "1", "yes", "on"):
        return True
    if lower in ("false", "0", "no", "off"):
        return False
    raise ValueError("is neither true nor false")


def _to_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("is not a path")
    return Path(text).expanduser()


def _to_texts(text: str) -> tuple[str, ...]:
    return tuple(part for part in (part.strip() for part in text.split(",")) if part)


_CONVERTERS: Mapping[Any, Callable[[str], Any]] = {
    str: str,
    int: _to_int,
    float: _to_float,
    bool: _to_bool,
    Path: _to_path,
    tuple[str, ...]: _to_texts,
}
