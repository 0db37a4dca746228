"""One server, many tenants: agents from constitutions, an orchestrator that delegates, tools, memory."""
