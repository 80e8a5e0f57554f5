"""Addresses of stores that contain a secret."""

from __future__ import annotations

URLS = [
    "redis://app:hunter2@h:6379/0",
    "redis://:hunter2@h",
    "redis://app:hun/hunter2@h:6379/0",
    "redis://app:a@hunter2@h:6379",
    "redis://app:a?hunter2@h:6379",
    "redis://app:a#hunter2@h:6379",
    "redis://app:my hunter2@h:6379",
    "rediss://app:hunter2@h:6379/0?ssl_cert_reqs=none",
    "redis://h/0?password=hunter2",
    "redis://h/0?db=1&password=hunter2",
    "redis://h/0?username=hunter2",
    "redis://h/0?p%61ssword=hunter2",
    "redis://h/0?credential_provider=hunter2",
    "unix:///run/redis.sock?password=hunter2",
    "unix://app:hunter2@/run/redis.sock",
    "redis:/app:hunter2@h",
    "redis:app:hunter2@h",
    "//app:hunter2@h",
    "app:hunter2@h:6379",
    "sentinel://:hunter2@s1:26379;sentinel://:hunter2@s2:26379",
    "redis+cluster://app:hunter2@h1:6379,app:hunter2@h2:6379",
    "postgresql://app:hunter2@db/jobs",
]


TAILS = [  # a part of the secret looks like another component of the URL
    "redis://h:1/0?password=hun#ter2",
    "redis://h:1/0?password=hun;ter2",
    "redis://h:1/0?password=hun&ter2",
    "redis://h:1/0?password=hun@ter2",
    "redis://h/0?password=hun&ter2=1",
    "redis://h/0?&password=a&hunter2",
    "redis://h/0?hunter2",
    "redis://h/0#hunter2",
    "redis://h/0#hun@ter2",
    "redis://h/hunter2",
    "redis://h/0;password=hunter2",
    "redis://h:hunter2/0",
    "redis://u%3Ahunter2%40h",
    "redis://h/0?max_connections=hunter2",
    "rediss://h/0?ssl_keyfile=hunter2",
    "redis://h/0?client_name=hunter2",
]
