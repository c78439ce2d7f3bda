"""lightningrl."""
