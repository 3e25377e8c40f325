"""Token-level estimators: advantages over the tokens of a row, with a critic's values."""

from trajgym.rewards._gae import GAE, adaptive_lambda, gae, gae_row, whiten
from trajgym.rewards._igpo import igpo_token_advantages

__all__ = [
    "GAE",
    "adaptive_lambda",
    "gae",
    "gae_row",
    "igpo_token_advantages",
    "whiten",
]
