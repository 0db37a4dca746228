"""Agents made of constitutions: their documents, prompts, commands and turns."""
