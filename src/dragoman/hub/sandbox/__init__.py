"""Where commands of agents run."""
