"""The command ``ptxrt``, one file for each of its commands."""
