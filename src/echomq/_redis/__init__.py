"""The seam to the server: the only package that imports ``redis`` or ``hiredis``."""
