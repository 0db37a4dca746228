"""Agents elsewhere behind one address: any version of A2A on both sides, with or without tasks of our own.

`settings.py` reads bridge.toml. `durable.py` stores tasks here that follow those of the agent; `pass_through.py` stores nothing.
`upstream.py` is the connection to the agent, `answers.py` checks its answers. `bridged_agent.py` has the card for callers.
`application.py` connects them to a server: one `BridgeRoute` for each agent.
"""
