"""Recognising and rewriting graphs; shared by the runtimes."""
