"""For tests of kernels: coverage of their lines (`coverage`), values to draw (`strategies`), checks (`checking`).

pytest loads its plugin from the module `pytest_ptxrt`, which stands outside of the package: to import a module of
ptxrt would load NumPy in each run of pytest, of people too who test no kernels.
"""
