"""The sections of docs/speed/performance.md, each made of the result files of its benchmarks."""
