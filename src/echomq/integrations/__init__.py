"""EchoMQ in web frameworks, a module for each. Each needs its framework: ``pip install "echomq[fastapi]"``, and so on."""
