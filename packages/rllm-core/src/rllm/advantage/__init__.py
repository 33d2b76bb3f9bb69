"""From graded episodes to advantages: grouping, estimators, and which steps may be trained on. Pure functions."""

__all__ = [
    "GroupingResult",
    "ScoredGroup",
    "estimate",
    "make_groups",
    "shuffle_rewards",
    "smallest_group",
    "untrainable_reason",
]

from rllm.advantage.estimate import ScoredGroup, estimate, shuffle_rewards, smallest_group
from rllm.advantage.filters import untrainable_reason
from rllm.advantage.grouping import GroupingResult, make_groups
