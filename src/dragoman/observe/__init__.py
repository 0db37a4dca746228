"""Nothing happens unseen: numbers, traces, log lines, and a record of who did what."""
