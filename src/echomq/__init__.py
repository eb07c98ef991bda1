"""EchoMQ: a reliable job queue for Python on Redis or Valkey."""
