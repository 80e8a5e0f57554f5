"""The dead-letter inbox. It shows dead letters grouped by topic and error, the notes that people have written about
each group, and how the errors of one group differ.
"""
