"""What the tests of every folder share: servers, waiting, checks for what a test leaves behind."""
