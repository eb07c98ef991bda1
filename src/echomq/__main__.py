"""``python -m echomq``: the command line, as ``echomq``."""

from echomq.cli import main

main()
