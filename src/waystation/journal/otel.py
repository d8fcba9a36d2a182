"""OpenTelemetry: each outcome of a message at this node as a span (extra `otel`, off by default).

A message's id is a W3C trace id, so the spans of all nodes that a message passed make one trace.
This is an observer like the journal: pass `Spans.note` to `node.observe`. It needs the SDK:
`pip install 'waystation[otel]'`. Exporting, batching and their limits are the SDK's.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from waystation.core.outcome import Outcome
from waystation.core.record import MessageRecord, Record
from waystation.errors import LocalError

_SCOPE = InstrumentationScope("waystation")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Spans:
    """Turns the outcomes of messages at a node into spans and passes them to a processor.

    By default, they are exported in batches to the OTLP endpoint that the environment configures
    (OTEL_EXPORTER_OTLP_ENDPOINT and others).
    """

    def __init__(self, node: str, processor: SpanProcessor | None = None) -> None:
        self._processor = _otlp() if processor is None else processor
        self._resource = Resource.create(
            {"service.name": "waystation", "service.instance.id": node}
        )
        self._ids = RandomIdGenerator()

    def note(self, record: Record) -> None:
        """Take a record; only messages become spans."""
        if isinstance(record, MessageRecord):
            trace = _trace_id(record.arrival.message.id)
            if trace:  # a message without an id belongs to no trace
                self._processor.on_end(self._span(record, trace))

    def close(self) -> None:
        """Export what is left and shut the processor down."""
        self._processor.shutdown()

    def _span(self, record: MessageRecord, trace: int) -> ReadableSpan:
        verdict = record.verdict
        dropped = verdict.outcome is Outcome.DROPPED
        reason = None if verdict.reason is None else str(verdict.reason)
        return ReadableSpan(
            name=str(verdict.outcome),
            context=SpanContext(trace, self._ids.generate_span_id(), False, _SAMPLED),
            resource=self._resource,
            attributes=_attributes(record),
            kind=SpanKind.CONSUMER,
            status=Status(StatusCode.ERROR, reason) if dropped else Status(StatusCode.OK),
            start_time=record.arrival.received_at * 1_000,
            end_time=record.at * 1_000,
            instrumentation_scope=_SCOPE,
        )


def _otlp() -> SpanProcessor:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
    except ModuleNotFoundError as error:
        raise LocalError(
            "the OTLP exporter is not installed",
            rule="OB-4",
            hint="pip install opentelemetry-exporter-otlp-proto-http, or pass a processor",
        ) from error
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    return BatchSpanProcessor(OTLPSpanExporter())


def _trace_id(message_id: str) -> int:
    try:
        return int(message_id, 16) if len(message_id) == 32 else 0
    except ValueError:
        return 0


def _attributes(record: MessageRecord) -> dict[str, str | int]:
    message, verdict = record.arrival.message, record.verdict
    values: dict[str, str | int | None] = {
        "waystation.onward": str(message.onward_route),
        "waystation.return": str(message.return_route),
        "waystation.bytes": len(message.payload),
        "waystation.multicast_id": record.arrival.multicast_id,
        "waystation.reason": None if verdict.reason is None else str(verdict.reason),
        "waystation.next_hop": str(verdict.address) if _is_sent(record) else None,
        "waystation.recipient": verdict.recipient if _is_received(record) else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _is_sent(record: MessageRecord) -> bool:
    return record.verdict.outcome is Outcome.FORWARDED and record.verdict.address is not None


def _is_received(record: MessageRecord) -> bool:
    return record.verdict.outcome is Outcome.DELIVERED
