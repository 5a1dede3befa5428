"""The nouns that every other package shares; imports nothing of Tokenmill."""
