"""GGUF files become onnxruntime-genai directories, once, in the cache."""
