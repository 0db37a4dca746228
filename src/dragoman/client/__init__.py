"""The client: talk to any agent of any version."""
