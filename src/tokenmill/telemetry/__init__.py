"""What happened, and how long it took. Called from everywhere, calls nobody."""
