"""Imports periodic tasks from celery-redbeat and django-celery-beat.

`redbeat` and `django_tables` read the foreign entries; neither library needs to be installed. `plan` decides what to do
with each entry, and does it.
"""
