"""Metadata by which the hub passes facts about a request to itself.

`NATIVE` is the dialect of calls that the hub's own API makes. Metadata under `HUB_PREFIXES` is trusted only in such calls and
between agents of the hub. It is removed from messages of other callers:

    x-arbiter.conversation_id   the conversation a native request belongs to
    x-arbiter.original          the first message of the user
    x-arbiter.channel           `voice`: this answer is read aloud, whatever the constitution says; `text`: it is not
    x-arbiter.relay, .stream_id, .budget, .asker, .context   set by an agent that delegates

The last status of a task has `x-arbiter.agent_id .input_tokens .output_tokens .stop_reason .files_bytes`, on failure
`.error .error_type`, and `.gate_approved` when an advisor approved the answer. Its message is the answer, with the id
`<task>-r`, or the error, with the id `<task>-err`.
"""

NATIVE = "native"
ARBITER = "arbiter"
"""The dialect whose callers get an error, not a failed task, when an agent breaks, and the notes of an agent when they resubscribe."""
VIA = "x-dragoman.via"
"""How a request came in: `native` or `a2a`."""
AGENT_VERSION = "x-dragoman.version"
"""The version of the agent that a request is for."""
HUB_PREFIXES = ("x-arbiter.", "x-dragoman.")
