"""Decoding on ONNX Runtime, with state in shared buffers, plain tensors or static caches."""
