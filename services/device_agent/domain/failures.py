"""What the cloud may be told of a failure: the kind of error and its place, in the signed script's own words.

Everything that a worker says of a failure is under the script's control: the text of an exception, but also
the name of its class and of its functions, which a script can make up at run time out of an event. So a name
leaves the device only if it stands in the signed script or is Python's own, a line only if the script has it.
"""

import ast
import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass

from libs.common.errors import Invalid
from libs.task.script import compile_script

_OWN = "an exception of the script"
_STAYS = "; its text stays on the device, see its results and log"
_FRAME = re.compile(r'  File "[a-z0-9-]+@[A-Za-z0-9._-]+/([\w./-]+)", line (\d{1,9}), in (\w+|<\w+>)')
# The class may be qualified by its module: "json.decoder.JSONDecodeError", "task:hello@1/run.py.MyError".
_CLASS = re.compile(r"(?:[\w.:@/-]*\.)?([A-Za-z_]\w*)(?::|$)", re.ASCII)
_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'$", re.MULTILINE)
_TIMEOUT = re.compile(
    r"((?:ran|loaded) longer than [\d.e+-]+ s and was killed|used up its CPU time and was killed)"
    r"(?: in [a-z0-9-]+@[A-Za-z0-9._-]+/([\w./-]+), line (\d{1,9}), in (\w+|<\w+>))?"
)
_ENDED = re.compile(r"its process ended: (?:signal [A-Z0-9+-]+|exit status \d{1,3})", re.ASCII)

_EXCEPTIONS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)
# Code that has no name of its own.
_NAMELESS = frozenset({"<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})


@dataclass(frozen=True, slots=True)
class ScriptNames:
    """The words of a version's signed scripts that a report may use."""

    lines: Mapping[str, int]
    """Path of each script → how many lines it has."""
    functions: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    """Defined or imported by name."""
    modules: frozenset[str] = frozenset()
    """Imported; with their parents."""
    fault: str = ""
    """What is wrong with the version's files, found by reading them: the first script that doesn't compile or
    lacks its entry point, or the plan. Empty when nothing is."""


def script_names(scripts: Mapping[str, tuple[bytes, str]]) -> ScriptNames:
    """Read the names off scripts, without running anything.

    Args:
        scripts: path → source and entry point.
    """
    functions: set[str] = set()
    classes: set[str] = set()
    modules: set[str] = set()
    fault = ""
    for path, (source, entry_point) in scripts.items():
        try:
            compile_script(source, path, entry_point)
        except Invalid as error:
            fault = fault or error.message
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.add(node.name)
            elif isinstance(node, ast.ClassDef):
                functions.add(node.name)  # a class's body is a frame by its name
                classes.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                classes.update(alias.name for alias in node.names)
                modules.update(_parents(node.module or ""))
                modules.update(f"{node.module or ''}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    modules.update(_parents(alias.name))
    lines = {path: source.count(b"\n") + 1 for path, (source, _) in scripts.items()}
    return ScriptNames(lines, frozenset(functions), frozenset(classes), frozenset(modules), fault)


def reportable(reason: str, message: str, names: ScriptNames) -> str:
    """Return what the cloud may be told of a failed run or load.

    An error's own text may quote an event ("could not convert 'Alice'"), so it stays on the device, in the
    result and the log.

    Args:
        reason: one of the VM's.
        message: what the VM says of it.
        names: the words of the version's scripts.
    """
    if reason == "TIMEOUT" and (late := _TIMEOUT.fullmatch(message)):
        place = _place(late[2], late[3], late[4], names) if late[2] else ""
        return f"{late[1]} in {place}" if place else late[1]
    if reason == "CRASH":
        ended = _ENDED.fullmatch(message)
        return ended[0] if ended is not None else "its process ended"
    if reason == "LOAD_ERROR" and names.fault:
        return names.fault  # found by reading the files, not by running them
    kind, place = _kind_and_place(message, names)
    missing = _NO_MODULE.search(message)
    if kind == "ModuleNotFoundError" and missing is not None and missing[1] in names.modules:
        kind = missing[0]
    where = f" ({place})" if place else ""
    return f"{kind or reason}{where}{_STAYS}"


def _kind_and_place(message: str, names: ScriptNames) -> tuple[str, str]:
    """Return the last error's class and the last place of a traceback, each empty when it has none."""
    kind = place = ""
    after_frame = False
    for line in message.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            place = _place(frame[1], frame[2], frame[3], names) or place
            after_frame = True
        elif after_frame and not line.startswith(" "):
            name = _CLASS.match(line)
            kind, after_frame = _kind(name[1] if name is not None else "", names), False
    return kind, place


def _kind(name: str, names: ScriptNames) -> str:
    return name if name in _EXCEPTIONS or name in names.classes else _OWN


def _place(path: str, line: str, function: str, names: ScriptNames) -> str:
    if int(line) > names.lines.get(path, -1):
        return ""
    known = function in names.functions or function in _NAMELESS
    return f"{path}, line {int(line)}, in {function}" if known else f"{path}, line {int(line)}"


def _parents(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
