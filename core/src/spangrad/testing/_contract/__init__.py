"""The parts of the contract suite. Importing anything below here needs pytest."""
