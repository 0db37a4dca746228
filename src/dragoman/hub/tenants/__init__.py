"""Tenants, their tokens and limits."""
