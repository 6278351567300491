"""Version of the package; the compiled extension must have the same one."""

__version__ = "0.1.0"
