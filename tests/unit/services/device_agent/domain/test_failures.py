import builtins

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.device_agent.domain.failures import ScriptNames, reportable, script_names

SCRIPT = b"""
import json
import os.path
from decimal import InvalidOperation


class Unripe(Exception):
    pass


def load(text):
    raise Unripe(text)


def run(context):
    return load(context.events[-1].fields["text"])
"""
NAMES = script_names({"pre.py": (SCRIPT, "run"), "lib/pre.py": (b"def load():\n    pass\n", "load")})
STAYS = "; its text stays on the device, see its results and log"


def traceback(*last, path="pre.py", line=15, function="run"):
    frame = f'  File "genre-profile@1.2/{path}", line {line}, in {function}\n    rows = load(event.fields)\n'
    return "Traceback (most recent call last):\n" + frame + "\n".join(last)


def test_names_are_read_off_the_scripts():
    assert NAMES.lines == {"pre.py": 17, "lib/pre.py": 3}
    assert NAMES.functions == {"load", "run", "Unripe"}
    assert NAMES.classes == {"Unripe", "InvalidOperation"}
    assert {"json", "os", "os.path", "decimal"} <= NAMES.modules
    assert NAMES.fault == ""


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("KeyError: 'Alice: 42\nBob: no'", "KeyError"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("task:genre-profile@1.2/pre.py.Unripe: Alice", "Unripe"),
        ("decimal.InvalidOperation: [<class 'Alice'>]", "InvalidOperation"),
        ("Alice_is_unwell: 42", "an exception of the script"),
        ("builtins.Alice: 42", "an exception of the script"),
        ("Alice", "an exception of the script"),
        ("Alice.Unripe: 42", "Unripe"),
        ("json: Alice", "an exception of the script"),
        ("ünïcode: Alice", "an exception of the script"),
    ],
)
def test_only_pythons_and_the_scripts_own_error_names_are_told(last, kind):
    assert reportable("EXCEPTION", traceback(last), NAMES) == f"{kind} (pre.py, line 15, in run){STAYS}"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ({}, " (pre.py, line 15, in run)"),
        ({"function": "Unripe"}, " (pre.py, line 15, in Unripe)"),
        ({"function": "<listcomp>"}, " (pre.py, line 15, in <listcomp>)"),
        ({"function": "Alice"}, " (pre.py, line 15)"),
        ({"function": "<Alice>"}, " (pre.py, line 15)"),
        ({"path": "Alice.py"}, ""),
        ({"line": 424242}, ""),
        ({"line": "0015"}, " (pre.py, line 15, in run)"),
    ],
)
def test_only_places_that_the_scripts_have_are_told(place, told):
    assert reportable("EXCEPTION", traceback("ValueError: x", **place), NAMES) == f"ValueError{told}{STAYS}"


def test_the_last_error_of_a_chain_is_told():
    text = traceback("KeyError: 'Alice'") + (
        "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    )
    text += traceback("ValueError: Alice", path="lib/pre.py", line=2, function="load")
    assert reportable("EXCEPTION", text, NAMES) == f"ValueError (lib/pre.py, line 2, in load){STAYS}"


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        ("EXCEPTION", "whatever: Alice", f"EXCEPTION{STAYS}"),
        ("BAD_RESULT", "the result of run: Alice is no number", f"BAD_RESULT{STAYS}"),
        ("MEMORY", "MemoryError: Alice", f"MEMORY{STAYS}"),
        ("TIMEOUT", "ran longer than 1 s and was killed", "ran longer than 1 s and was killed"),
        (
            "TIMEOUT",
            "ran longer than 0.5 s and was killed in genre-profile@1.2/pre.py, line 15, in run",
            "ran longer than 0.5 s and was killed in pre.py, line 15, in run",
        ),
        (
            "TIMEOUT",
            "loaded longer than 10 s and was killed in genre-profile@1.2/pre.py, line 15, in Alice",
            "loaded longer than 10 s and was killed in pre.py, line 15",
        ),
        (
            "TIMEOUT",
            "ran longer than 1 s and was killed in genre-profile@1.2/Alice.py, line 15, in run",
            "ran longer than 1 s and was killed",
        ),
        ("TIMEOUT", "ran longer than Alice", f"TIMEOUT{STAYS}"),
        ("CRASH", "its process ended: signal SIGSEGV", "its process ended: signal SIGSEGV"),
        ("CRASH", "its process ended: exit status 3", "its process ended: exit status 3"),
        ("CRASH", "the worker broke the protocol: b'Alice'", "its process ended"),
        ("LOAD_ERROR", traceback("Alice: 1"), f"an exception of the script (pre.py, line 15, in run){STAYS}"),
        ("LOAD_ERROR", "SyntaxError: Alice", f"LOAD_ERROR{STAYS}"),
        (
            "LOAD_ERROR",
            traceback("ModuleNotFoundError: No module named 'os.path'"),
            f"ModuleNotFoundError: No module named 'os.path' (pre.py, line 15, in run){STAYS}",
        ),
        (
            "LOAD_ERROR",
            traceback("ModuleNotFoundError: No module named 'Alice'"),
            f"ModuleNotFoundError (pre.py, line 15, in run){STAYS}",
        ),
    ],
)
def test_other_reasons(reason, message, told):
    assert reportable(reason, message, NAMES) == told


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (b"def run(context:\n", "pre.py, line 1: "),
        (b"def go(context):\n    pass\n", "pre.py: no top-level function 'run'"),
    ],
)
def test_what_reading_a_script_finds_is_told_as_it_is(source, told):
    names = script_names({"pre.py": (source, "run")})
    assert reportable("LOAD_ERROR", "SyntaxError: Alice", names).startswith(told)


@given(st.sampled_from(["EXCEPTION", "BAD_RESULT", "MEMORY", "LOAD_ERROR"]), st.text())
def test_the_text_of_an_error_never_passes(reason, message):
    text = reportable(reason, f"{message}\nValueError: {message}\n{message}", ScriptNames({}))
    assert text == f"{reason}{STAYS}"


@given(
    last=st.text(max_size=40), function=st.text(max_size=20), path=st.text(max_size=20), line=st.integers()
)
def test_whatever_a_traceback_says_only_known_words_pass(last, function, path, line):
    told = reportable("EXCEPTION", traceback(last, path=path, line=line, function=function), NAMES)
    words = told.removesuffix(STAYS)
    assert words == "EXCEPTION" or words.partition(" (")[0] in {
        "an exception of the script",
        *(name for name in ("Unripe", "InvalidOperation", *vars(builtins)) if name in last),
    }
