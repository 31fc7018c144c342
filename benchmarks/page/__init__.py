"""The sections of docs/PERFORMANCE.md and docs/performance/parts.md, made from result files."""
