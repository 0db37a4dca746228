"""Metrics, traces, log lines, quotas and the audit log."""
