"""spangrad."""
