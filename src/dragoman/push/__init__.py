"""Push notifications: `PushOptions` for those who send them, `Webhook` and `Verifier` for those who receive them."""

from dragoman.push.guard import Guard
from dragoman.push.options import PushOptions
from dragoman.push.receive import Received, Verifier, read_notification
from dragoman.push.webhook import Webhook

__all__ = ["Guard", "PushOptions", "Received", "Verifier", "Webhook", "read_notification"]
