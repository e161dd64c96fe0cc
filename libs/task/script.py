"""Scripts: compile a phase's source to find its errors before a device does.

Scripts travel as source and each device compiles them after verifying: bytecode differs between Pythons.
Nothing of a script is run here.
"""

import ast
from types import CodeType

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean

MAX_BYTES = 1024 * 1024


def compile_script(
    source: bytes, name: str, entry_point: str | None = None, argument_count: int | None = None
) -> CodeType:
    """Compile a script.

    Args: source: Python source, UTF-8 or with a coding cookie, at most 1 MiB. name: its file name, for
    messages and tracebacks. entry_point: a function that must be there at top level. argument_count: how
    many positional arguments that function must take: 1 for a task's first phase, 2 for a later one.

    Returns the code object of the module.

    Raises Invalid: reason SYNTAX with the line's number and text, or ENTRY_POINT when the function isn't
    there or can't be called so.
    """
    if len(source) > MAX_BYTES:
        raise Invalid(f"{name}: script has {len(source)} bytes, more than {MAX_BYTES}", reason="TOO_LARGE")
    try:
        tree = ast.parse(source, name)
        code = compile(tree, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _syntax_error(source, name, error) from None
    except (ValueError, UnicodeError) as error:  # null bytes; an unknown coding
        raise Invalid(f"{name}: {error}", reason="SYNTAX", metadata={"file": name}) from None
    except (RecursionError, MemoryError):
        raise Invalid(
            f"{name}: script is nested too deeply", reason="TOO_DEEP", metadata={"file": name}
        ) from None
    if entry_point is not None:
        _check_entry_point(tree, name, entry_point, argument_count)
    return code


def _syntax_error(source: bytes, name: str, error: SyntaxError) -> Invalid:
    where, quoted = "", ""
    metadata = {"file": name}
    if error.lineno:
        where = f", line {error.lineno}"
        metadata["line"] = str(error.lineno)
        text = error.text if error.text is not None else _line(source, error.lineno)
        quoted = f"\n    {text.strip()[:200]}" if text.strip() else ""
    return Invalid(f"{name}{where}: {error.msg}{quoted}", reason="SYNTAX", metadata=metadata)


def _line(source: bytes, number: int) -> str:
    lines = source.splitlines()
    return lines[number - 1].decode(errors="replace") if number <= len(lines) else ""


def _check_entry_point(tree: ast.Module, name: str, entry_point: str, count: int | None) -> None:
    metadata = {"file": name, "entry_point": entry_point}
    functions = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    function = functions.get(entry_point)
    if function is None:
        there = (", ".join(functions) or "none")[:200]
        hint = did_you_mean(entry_point, functions)
        message = f"{name}: no top-level function {entry_point!r}; there are: {there}{hint}"
        raise Invalid(message, reason="ENTRY_POINT", metadata=metadata)
    metadata["line"] = str(function.lineno)
    here = f"{name}, line {function.lineno}: entry point {entry_point!r}"
    if isinstance(function, ast.AsyncFunctionDef):
        raise Invalid(f"{here} must be a plain function, not async", reason="ENTRY_POINT", metadata=metadata)
    if count is None:
        return
    arguments = function.args
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    required_keyword = any(default is None for default in arguments.kw_defaults)
    if required_keyword or count < least or (count > most and arguments.vararg is None):
        wanted = "(context)" if count == 1 else "(context, value)"
        raise Invalid(f"{here} must take {wanted}", reason="ENTRY_POINT", metadata=metadata)
