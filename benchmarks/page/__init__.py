"""The sections of docs/speed/performance.md and docs/speed/parts.md, made from result files."""
