"""The version of the installed package: a module of its own, as it takes long to read the metadata of a package."""

from importlib.metadata import version

__version__ = version("gemm_eval")
