"""The Model Context Protocol (extra `mcp`)."""
