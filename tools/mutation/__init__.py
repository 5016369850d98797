"""Mutants of the kernels: what they are, how one is tried, and which of them compute the same."""
