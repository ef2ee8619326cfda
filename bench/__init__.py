"""Benchmarks of fastckpt against what it replaces: `python -m bench --help`."""
