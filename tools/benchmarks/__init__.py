"""The benchmarks of tools/bench.py, and what they share: report.py."""
