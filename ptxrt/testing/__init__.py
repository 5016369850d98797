"""For tests of kernels: coverage of their lines (`coverage`), values to draw (`strategies`), checks (`checking`).

`pytest_plugin` is loaded in each run of pytest where ptxrt is installed: it imports the others, and NumPy, for a test
that asks for checks alone.
"""
