"""Logits become a token: pure functions over a row and a little state."""
