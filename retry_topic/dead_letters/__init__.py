"""Dead letters: select them, group them by error, replay them, delete them.

`letters.py` has the public class `DeadLetters`; `selection.py`, `groups.py` and `replay.py` do its work.
`dead_topic.py` replays a dead topic on Kafka, and `loop_guard.py` bounds how often one message is replayed.
"""

from retry_topic.dead_letters.groups import Group
from retry_topic.dead_letters.letters import DeadLetters
from retry_topic.dead_letters.replay import Order, Replayed
from retry_topic.dead_letters.selection import DeadLetterFilter, DeadLetterInfo
from retry_topic.message.headers.failed_attempts import FailedAttempt, FailedAttempts

__all__ = [
    "DeadLetterFilter",
    "DeadLetterInfo",
    "DeadLetters",
    "FailedAttempt",
    "FailedAttempts",
    "Group",
    "Order",
    "Replayed",
]
