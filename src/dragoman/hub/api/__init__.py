"""The native HTTP API of the hub."""
