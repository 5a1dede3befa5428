"""Decoding on ONNX Runtime with key-value buffers written in place."""
