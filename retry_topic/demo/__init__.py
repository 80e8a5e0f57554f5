"""The demo: thousands of real records delivered as webhooks to an endpoint that fails in real ways.

Five processes: the embedded server, the endpoint, the consumer, the retry service that is killed half-way, and the
second one that carries on. What is reported is what the endpoint and the consumer saw, never what the dispatcher
says of itself.
"""
