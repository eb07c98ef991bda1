"""What the testing kit is made of: a server to throw away, its clock, workers that are led by hand, and jobs without a server."""
