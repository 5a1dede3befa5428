"""The slowest and plainest backend: what every other one must agree with."""
