"""Scratchpads and structured memory."""
