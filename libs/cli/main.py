"""The `isthmus` command and its exit codes; `libs.cli.start` imports it and runs it.

Groups are found by the entry points `isthmus.cli`, and each is imported only when it is called, so that
`isthmus --help` and completion stay quick.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import TextIO

import click

from libs.cli.files import error_from_os
from libs.cli.output import Output, plain
from libs.cli.session import Settings
from libs.cli.start import ends_quietly
from libs.cli.values import Number
from libs.common.errors import Error, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable
from libs.common.suggest import did_you_mean

# What a script may rely on: see docs/cli.md.
EXIT_CODES: tuple[tuple[type[Error], int], ...] = (
    (Invalid, 2),
    (Unauthenticated, 3),
    (Forbidden, 3),
    (NotFound, 4),
    (Unavailable, 5),
)


class Groups(click.Group):
    """A group whose members come from entry points and whose misspelt names get a suggestion."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all groups, installed plugins included."""
        return sorted({*super().list_commands(ctx), *entry_points(group="isthmus.cli").names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a group, or None when there is none of that name."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            for entry in entry_points(group="isthmus.cli", name=cmd_name):
                with ends_quietly():
                    found = entry.load()
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` start with; a misspelt one is answered with the nearest name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            refuse_unknown(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Group(click.Group):
    """A group of the command whose misspelt members get a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` start with; a misspelt one is answered with the nearest name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            refuse_unknown(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def refuse_unknown(name: str, known: Iterable[str]) -> None:
    """Raise the usage error for a command that doesn't exist."""
    raise click.UsageError(f"no command {name!r}{did_you_mean(name, known)}")


@click.group(cls=Groups, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--gateway", metavar="HOST:PORT", envvar="ISTHMUS_ADDRESS", help="Where the gateway listens.")
@click.option(
    "--api-key-file",
    type=click.Path(dir_okay=False),
    envvar="ISTHMUS_API_KEY_FILE",
    help="File that holds the API key.",
)
@click.option(
    "--ca-file", type=click.Path(dir_okay=False), envvar="ISTHMUS_CA_FILE", help="CA of a TLS gateway."
)
@click.option("--tenant", envvar="ISTHMUS_TENANT", help="Tenant to work in.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    envvar="ISTHMUS_CONFIG",
    help="Settings file; default: var/cli.json here, then ~/.config/isthmus/cli.json.",
)
@click.option("--timeout", type=Number(min=0.1, max=3600), default=30.0, help="Seconds for one call.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.version_option(version("isthmus"), prog_name="isthmus")
@click.pass_context
def isthmus(
    ctx: click.Context,
    gateway: str | None,
    api_key_file: str | None,
    ca_file: str | None,
    tenant: str | None,
    config_file: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Publish tasks, release them to devices, and look at what they do."""
    # A key that a flag names wins over the environment's.
    flagged = ctx.get_parameter_source("api_key_file") is click.core.ParameterSource.COMMANDLINE
    ctx.obj = Settings(
        gateway=gateway,
        api_key="" if flagged else os.environ.get("ISTHMUS_API_KEY", ""),
        api_key_file=api_key_file,
        ca_file=ca_file,
        tenant=tenant,
        config_file=config_file,
        timeout_s=timeout,
        output=Output(as_json=as_json),
    )


@isthmus.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL: eval "$(isthmus completion bash)"."""
    from click.shell_completion import get_completion_class

    cls = get_completion_class(shell)
    if cls is None:  # pragma: no cover - the choice above lists only what click knows
        raise click.UsageError(f"no completion for {shell}")
    click.echo(cls(isthmus, {}, "isthmus", "_ISTHMUS_COMPLETE").source())


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code; see docs/cli.md for what the codes mean."""
    arguments = sys.argv[1:] if argv is None else argv
    as_json = "--json" in _own(arguments)
    out, err = sys.stdout, sys.stderr
    code = 0
    try:
        code = _run(arguments, as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_gone()
    except SystemExit:
        # click answers a pipe that nobody reads by wrapping the streams and exiting.
        if sys.stdout is out:
            raise
        sys.stdout, sys.stderr = out, err
        code = _reader_gone()
    except (OSError, UnicodeError) as error:
        # Files are checked where they are named; this is what only writing or reading them showed.
        found = (
            error_from_os(error)
            if isinstance(error, OSError)
            else Invalid(f"a name or a file isn't UTF-8 text: {error}", reason="NOT_TEXT")
        )
        _discard(sys.stdout)
        # A command that has failed has said so; that the rest of its output fails as well is no news.
        code = code or _fail(found, as_json)
    return code


def _reader_gone() -> int:
    # The reader (head, less) has gone; nothing is wrong and nobody is left to tell.
    _discard(sys.stdout)
    return 0


def _discard(stream: TextIO) -> None:
    """Send what a stream still holds nowhere: Python writes it out once more when it ends."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _fail(error: Error, as_json: bool) -> int:
    Output(as_json=as_json).error(error.reason, error.message, dict(error.metadata))
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


def _own(arguments: list[str]) -> list[str]:
    """Return the arguments before `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _run(arguments: list[str], as_json: bool) -> int:
    try:
        # `--json` is understood anywhere on the line, since people type it last, but not after `--`.
        own = _own(arguments)
        rest = arguments[len(own) :]
        ordered = ["--json", *(a for a in own if a != "--json"), *rest] if as_json else arguments
        result = isthmus.main(args=ordered, prog_name="isthmus", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        if as_json:
            Output(as_json=True).error("USAGE", error.format_message())
        else:
            with io.StringIO() as said:
                error.show(file=said)
                sys.stderr.write("".join(plain(line) + "\n" for line in said.getvalue().splitlines()))
        return 2
    except Error as error:
        return _fail(error, as_json)
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
