"""The dead-letter inbox: dead letters grouped by topic and error, what people have noted about each group, and how the
errors of one group differ.
"""
