"""What a rank's supervisor needs to contact the launcher: job, key and address."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.errors import ConfigError

JOB_VARIABLE = "TFDIST_JOB_ID"
KEY_VARIABLE = "TFDIST_RUN_KEY"
ADDRESS_VARIABLE = "TFDIST_RUN_ADDRESS"
LAUNCHED_VARIABLE = "TFDIST_LAUNCHED"


@dataclass(frozen=True)
class Ticket:
    """Passed from launcher to supervisors in the environment, never on a command line."""

    job: str
    key: bytes = field(repr=False)
    host: str
    port: int

    @classmethod
    def issue(cls, host: str, port: int) -> Ticket:
        return cls(secrets.token_hex(8), secrets.token_bytes(32), host, port)

    def variables(self) -> dict[str, str]:
        return {
            JOB_VARIABLE: self.job,
            KEY_VARIABLE: self.key.hex(),
            ADDRESS_VARIABLE: f"{self.host}:{self.port}",
            LAUNCHED_VARIABLE: "1",
        }

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Ticket:
        """Reads the variables. Raises ConfigError if some are missing or invalid; the message never shows the key."""
        try:
            host, _, port = environment[ADDRESS_VARIABLE].rpartition(":")
            return cls(environment[JOB_VARIABLE], bytes.fromhex(environment[KEY_VARIABLE]), host, int(port))
        except (KeyError, ValueError):
            names = ", ".join((JOB_VARIABLE, KEY_VARIABLE, ADDRESS_VARIABLE))
            raise ConfigError(
                f"{names} are missing or invalid on host {os.uname().nodename}; expected them as tfdistrun sets them. "
                "Only tfdistrun can start a rank's supervisor."
            ) from None
