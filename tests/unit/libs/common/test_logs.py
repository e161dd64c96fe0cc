import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from libs.common.logs import JsonFormatter, scrub, setup_logging

JWT = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJrMSJ9.c2lnbmF0dXJl"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    level, out = root.level, io.StringIO()
    handler = setup_logging("deployer", "INFO", out)
    yield out
    root.removeHandler(handler)
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_an_object_with_the_extra_fields(stream: io.StringIO) -> None:
    logging.getLogger("isthmus.x").info("released %s", "r1", extra={"step": 3})
    (line,) = lines(stream)
    assert (line["message"], line["level"], line["service"], line["logger"], line["step"]) == (
        "released r1",
        "INFO",
        "deployer",
        "isthmus.x",
        3,
    )
    assert str(line["time"]).endswith("+00:00")
    assert "trace_id" not in line


def test_a_traceback_stays_on_its_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger().exception("failed")
    (line,) = lines(stream)
    assert "ValueError: first\nsecond" in str(line["exception"])


def test_a_line_names_its_trace(stream: io.StringIO) -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False))
    with trace.use_span(span):
        logging.getLogger().info("x")
    (line,) = lines(stream)
    assert line["trace_id"] == f"{0xABC:032x}"
    assert line["span_id"] == f"{0xDEF:016x}"


def test_setting_up_twice_writes_once(stream: io.StringIO) -> None:
    handler = setup_logging("deployer", "WARNING", stream)
    try:
        logging.getLogger().warning("once")
        logging.getLogger().info("never")
        assert [line["message"] for line in lines(stream)] == ["once"]
    finally:
        logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize(
    "text",
    [
        "isk_abc123_SECRETsecret-_99",
        "two lines\nisk_abc123_SECRETsecret-_99",
        "a column\tise_5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2",
        "\x1fisk_abc123_SECRETsecret-_99",
        "key isk_abc123_SECRETsecret-_99 given",
        "token: ise_5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2 is used up",
        f"authorization: Device {JWT}",
        f"token={JWT}",
        "Bearer SECRETsecretSECRETsecret",
        "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_credential_is_not_written(text: str, stream: io.StringIO) -> None:
    logging.getLogger().info("got %s", text, extra={"header": text})
    written = stream.getvalue()
    assert "***" in written
    for secret in ("SECRET", "c2lnbmF0dXJl", "eyJzdWIiOiJrMSJ9", "5ec2e75ec2"):
        assert secret not in written


def test_ordinary_text_is_written_as_it_is() -> None:
    text = "Device tenants/acme/devices/d1 runs isk tasks; bearer of news; otherwise_0123456789abcdef01 stays"
    text += " and so does disk_reserve_bytes"
    assert scrub(text) == text


@given(
    st.text(max_size=200), st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=20), max_size=3)
)
def test_any_record_is_one_line_of_json(message: str, extra: dict[str, str]) -> None:
    fields = {f"x{key}": value for key, value in extra.items()}
    record = logging.makeLogRecord({"msg": message, "levelname": "INFO", **fields})
    line = JsonFormatter("s").format(record)
    assert "\n" not in line
    assert isinstance(json.loads(line), dict)
