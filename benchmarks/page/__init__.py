"""The sections of docs/PERFORMANCE.md, each made of the result files of its benchmarks."""
