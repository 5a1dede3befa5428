"""Reads packages that an `inference_metadata` document describes (YAML or JSON)."""
