"""A verifier's certificate as the reward of an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._values import Rewards
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Scope, TurnTable

__all__ = ["CertificateReward"]

_SCORE, _VALID = "certificate_score", "certificate_valid"
_ACCEPT, _REJECT = "certificate_false_accept", "certificate_false_reject"


class CertificateReward(Deriver):
    """Execution-free verification (arXiv 2603.01896) as the reward of the attempt's last turn.

    Reads what `trajgym.rollout.annotators.CertificateJudge` recorded: the verdict
    (``certificate_score``, 1 or 0), whether the certificate passed all checks
    (``certificate_valid``), and the verifier's known error rates. An attempt without a certificate
    gets 0.

    Attributes:
        invalid: reward of a verdict whose certificate did not pass the checks.
        debias: return ``(score - a) / (1 - a - r)`` for valid certificates, with the rates a of
            wrong acceptance and r of wrong rejection: its mean over the verifier's errors is the
            true verdict. It has more variance, and lies outside 0..1.
    """

    name = "certificate"
    depends_on: ClassVar[Scope] = "session"
    needs_signals: ClassVar[tuple[str, ...]] = (_SCORE, _VALID, _ACCEPT, _REJECT)
    annotations: ClassVar[tuple[str, ...]] = (_SCORE,)

    invalid: float = 0.0
    debias: bool = False

    def derive(self, table: TurnTable) -> Rewards:
        """Return the verdict on the last turn of each scored attempt.

        Raises:
            InvalidInput: ``debias`` is set, and error rates are missing or add up to 1 or more.
        """
        score, valid = table.signal(_SCORE), table.signal(_VALID)
        judged = table.scored & table.last & score.known & valid.known
        verdict = self._debiased(table, judged) if self.debias else score.values
        holds = np.where(valid.values > 0, verdict, self.invalid)
        return Rewards(table, np.where(judged, holds, 0.0), self.stamp)

    def _debiased(self, table: TurnTable, judged: np.ndarray) -> Doubles:
        accept, reject = table.signal(_ACCEPT), table.signal(_REJECT)
        room = 1.0 - accept.values - reject.values
        bad = judged & ~(accept.known & reject.known & (room > 0))
        if bad.any():
            first = int(np.argmax(bad))
            raise InvalidInput(
                f"certificate: turn {table.turn[first]} of session "
                f"{table.sessions[table.session[first]]} has no error rates that add up to less "
                "than 1: set debias=False, or give the judge its rates",
            )
        score = table.signal(_SCORE).values
        result: Doubles = np.divide(
            score - accept.values, room, out=np.zeros_like(score), where=judged
        )
        return result
