"""A message's outcome as a span: the trace id is the message id."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.status import StatusCode

from tests.journal.traffic import DELIVERED, FORWARDED, NO_ROUTE, change_record, message_record
from waystation.core.record import Record
from waystation.journal.otel import Spans


def exported(*records: Record) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    spans = Spans("garage", SimpleSpanProcessor(exporter))
    for record in records:
        spans.note(record)
    found = exporter.get_finished_spans()
    spans.close()
    return found


def test_the_trace_id_of_a_span_is_the_id_of_the_message() -> None:
    record = message_record(7, DELIVERED)
    [span] = exported(record)
    assert f"{span.context.trace_id:032x}" == record.arrival.message.id
    assert span.attributes is not None
    assert span.start_time == record.arrival.received_at * 1_000
    assert span.end_time == record.at * 1_000
    assert span.resource.attributes["service.instance.id"] == "garage"
    assert span.attributes["waystation.recipient"] == "echo"


def test_a_drop_is_an_error_with_its_reason() -> None:
    [span] = exported(message_record(7, NO_ROUTE))
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "NO_ROUTE")
    assert "waystation.recipient" not in (span.attributes or {})


def test_a_forwarded_message_has_its_next_hop() -> None:
    [span] = exported(message_record(7, FORWARDED))
    assert (span.attributes or {})["waystation.next_hop"] == "1#10.0.0.9:4000"


def test_only_messages_with_an_id_make_spans() -> None:
    assert exported(change_record(1), message_record(0, DELIVERED)) == ()


def test_without_a_processor_spans_go_to_the_otlp_endpoint() -> None:
    spans = Spans("garage")
    spans.close()
