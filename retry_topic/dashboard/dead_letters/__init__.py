"""Dead letters in the dashboard: the inbox of their groups, one group, and operations that replay or delete them."""

from retry_topic.dashboard.dead_letters import (
    group_actions,
    group_page,
    inbox_pages,
    operation_actions,
    operations_pages,
)
from retry_topic.dashboard.dead_letters.panel import panel
from retry_topic.dashboard.dead_letters.running import start_runner

PAGES = (inbox_pages.PAGE, group_page.PAGE, *operations_pages.PAGES)
CALLS = (inbox_pages.CALL, group_page.CALL, *operations_pages.CALLS)
ACTIONS = (*group_actions.ACTIONS, *operation_actions.ACTIONS)
PANELS = (panel,)

__all__ = ["ACTIONS", "CALLS", "PAGES", "PANELS", "start_runner"]
