"""The message and everything written about it.

| module | what it does |
|---|---|
| `message` | the message itself, where it was read, and a reference to a payload that lies elsewhere |
| `headers` | the retry headers: what a message carries from one attempt to the next |
| `encoding` | a message as the fields of a stream entry, and as the bytes that wait in the delay store |
| `fingerprint` | one short hash for all errors of one kind |
| `topic_names` | the names of the topics that a consumer group owns |
"""

from retry_topic.message.message import Headers, Message, Reference, Source, digest_of

__all__ = ["Headers", "Message", "Reference", "Source", "digest_of"]
