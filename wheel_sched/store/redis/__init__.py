"""The delay store on Redis and Valkey: scripts, connections, and the backends of the blocking and asyncio stores."""
