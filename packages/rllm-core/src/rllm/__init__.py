"""rLLM: train AI agents with reinforcement learning, with the agent's code left as it is."""
