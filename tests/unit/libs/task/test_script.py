import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.task.script import MAX_BYTES, compile_script
from libs.task.testing import attempt


def test_a_good_script_compiles_and_is_not_run():
    code = compile_script(b"raise SystemExit\ndef pre(context):\n    return 1\n", "pre.py", "pre", 1)
    assert code.co_filename == "pre.py"


def test_a_syntax_error_shows_line_number_and_text():
    with pytest.raises(Invalid) as caught:
        compile_script(b"x = 1\ndef pre(context)\n    return 1\n", "pre.py", "pre")
    assert caught.value.message == "pre.py, line 2: expected ':'\n    def pre(context)"
    assert caught.value.reason == "SYNTAX"
    assert caught.value.metadata == {"file": "pre.py", "line": "2"}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"def f():\n  return 1\n return 2", "a.py, line 3: unindent does not match"),
        (b"return 1", "a.py, line 1: 'return' outside function"),
        (b"x = 1\nx = '\xff'\n", "a.py"),
        (b"a\x00b", "null bytes"),
        (b"# coding: klingon\n", "klingon"),
        (b"(" * 500, "a.py, line 1"),
        (b"-" * 200_000 + b"1", "nested too deeply"),
        (b"x" + b".a" * 100_000, "nested too deeply"),
        (b" " * (MAX_BYTES + 1), "more than 1048576"),
    ],
)
def test_what_does_not_compile_is_invalid(source, says):
    with pytest.raises(Invalid) as caught:
        compile_script(source, "a.py")
    assert says in caught.value.message


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
@example(b"\xef\xbb\xbfx = 1")
@example(b"\r\x0c\\")
def test_any_bytes_compile_or_are_invalid(source):
    _, error = attempt(compile_script, source, "a.py", "pre")
    assert error is None or error.message.startswith("a.py")


@pytest.mark.parametrize(
    ("source", "count", "says"),
    [
        ("x = 1", 1, "no top-level function 'pre'; there are: none"),
        ("def prep(context): pass", 1, "there are: prep; did you mean 'prep'?"),
        ("class A:\n  def pre(self): pass", 1, "no top-level function 'pre'"),
        (
            "x = 1\nasync def pre(context): pass",
            1,
            "a.py, line 2: entry point 'pre' must be a plain function, not async",
        ),
        ("def pre(): pass", 1, "must take (context)"),
        ("def pre(context): pass", 2, "must take (context, value)"),
        ("def pre(a, b, c): pass", 2, "must take (context, value)"),
        ("def pre(a, *, b): pass", 1, "must take (context)"),
    ],
)
def test_an_entry_point_must_be_callable_so(source, count, says):
    with pytest.raises(Invalid) as caught:
        compile_script(source.encode(), "a.py", "pre", count)
    assert says in caught.value.message
    assert caught.value.reason == "ENTRY_POINT"


@pytest.mark.parametrize(
    "source",
    ["def pre(a, b=1): pass", "def pre(*a): pass", "def pre(a, /, *b, c=1, **d): pass", "def pre(x):\n pass"],
)
def test_entry_points_that_take_the_context(source):
    compile_script(source.encode(), "a.py", "pre", 1)
