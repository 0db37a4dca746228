"""Repositories: one class for each noun, with all SQL of the hub. `database.py` opens the tables: in SQLite or in PostgreSQL."""
