"""Errors of the directory, the same for its REST and SOAP interfaces.

The names and numbers are those of UDDI v3.0.2, chapter 12. REST answers with the HTTP status beside them.
"""

from __future__ import annotations

# name -> (number in the disposition report, HTTP status of the REST face)
CODES = {
    "E_unsupported": (10050, 501),
    "E_authTokenExpired": (10110, 401),
    "E_authTokenRequired": (10120, 401),
    "E_userMismatch": (10140, 403),
    "E_unknownUser": (10150, 401),
    "E_accountLimitExceeded": (10160, 403),
    "E_invalidKeyPassed": (10210, 404),
    "E_busy": (10400, 503),
    "E_fatalError": (10500, 400),
    "E_messageTooLarge": (30110, 413),
    "E_invalidValue": (20200, 400),
    "E_valueNotAllowed": (20210, 409),
    "E_keyUnavailable": (40100, 409),
    "E_resultSetTooLarge": (40300, 400),
    "E_invalidCombination": (40500, 400),
}


class DirectoryError(Exception):
    """A request that is refused.

    code: one of CODES.
    ours: the fault is the directory's. cause: what the log says of it, and nobody who asks is told.
    """

    def __init__(self, code: str, text: str, *, ours: bool = False, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or text
        self.code = code
        self.number, self.status = CODES[code]
        self.ours = ours
        if ours:
            self.status = 503 if code == "E_busy" else 500
