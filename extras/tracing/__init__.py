"""Traces of requests, sent to a collector over OTLP."""

from runtime.extras import Extra

EXTRA = Extra(name="tracing", config="extras.tracing.config:TracingConfig", frontend="extras.tracing.part")
