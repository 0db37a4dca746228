"""The protocol's own nouns, as frozen values in the shape of A2A 1.0."""
