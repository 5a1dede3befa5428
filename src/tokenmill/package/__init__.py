"""A directory, a hub id or a GGUF file becomes a `ModelPackage`: what the model is and can do."""
