"""One model step: the contract and the runtimes that keep it."""
