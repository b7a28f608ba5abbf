"""Ray: start-up, placement groups, one supervisor for actors, and how weights reach the engines."""
