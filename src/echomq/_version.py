"""Which EchoMQ this is; the same stands in pyproject.toml."""

from typing import Final

__version__: Final = "0.1.0"
