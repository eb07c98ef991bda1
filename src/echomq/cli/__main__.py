"""``python -m echomq.cli``."""

from echomq.cli import main

main()
