"""Requests, their events, and the conversations, files and todos that they belong to."""
