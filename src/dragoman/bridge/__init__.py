"""Agents elsewhere behind one address: any version of A2A on both sides, with or without tasks of our own.

`settings.py` reads bridge.toml. `durable.py` keeps tasks here that follow those of the agent; `passing.py` keeps nothing.
`upstream.py` is the connection to the agent, `answers.py` checks what it says. `bridged_agent.py` has the card that is shown.
`application.py` connects them to a server: one `Route` for each agent.
"""
