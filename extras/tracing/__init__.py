"""A trace of each request for an OpenTelemetry collector (`--otlp-endpoint`)."""
