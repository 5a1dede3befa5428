"""The loop: prepare, step, emit; and the thread that it runs on."""
