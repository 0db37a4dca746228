"""Work that runs later or repeatedly."""
