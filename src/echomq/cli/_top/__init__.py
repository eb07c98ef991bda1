"""What ``echomq top`` is made of: ``watch`` asks the server, ``frame`` draws, ``screen`` has the terminal."""
