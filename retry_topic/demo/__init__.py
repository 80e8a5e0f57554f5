"""The demo: thousands of real records delivered as webhooks to an endpoint that fails in real ways.

The demo runs five processes: the embedded server, the endpoint, the consumer, a first retry service that the demo kills
half-way, and a second retry service that takes over. The report counts what the endpoint and the consumer saw. It never
counts what the dispatcher says about itself.
"""
