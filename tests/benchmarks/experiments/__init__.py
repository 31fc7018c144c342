"""Tests of benchmarks/experiments/."""
