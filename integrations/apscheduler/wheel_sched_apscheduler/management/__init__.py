"""What the command line and the dashboard share for jobs: lists them, shows one, and changes them. Nothing prints."""
