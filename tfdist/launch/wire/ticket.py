"""What a rank's supervisor needs to contact the launcher: job, key and address."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.errors import ConfigError
from tfdist.system.network.endpoint import parse, text

JOB_VARIABLE = "TFDIST_JOB_ID"
KEY_VARIABLE = "TFDIST_RUN_KEY"
ADDRESS_VARIABLE = "TFDIST_RUN_ADDRESS"
LAUNCHED_VARIABLE = "TFDIST_LAUNCHED"
FINGERPRINT_VARIABLE = "TFDIST_RUN_FINGERPRINT"
# What a process must not inherit from another job.
VARIABLES = (JOB_VARIABLE, KEY_VARIABLE, ADDRESS_VARIABLE, FINGERPRINT_VARIABLE, LAUNCHED_VARIABLE)


@dataclass(frozen=True)
class Ticket:
    """Passed from launcher to supervisors in the environment, never on a command line.

    `fingerprint` is that of the launcher's certificate; empty if it does not speak TLS.
    """

    job: str
    key: bytes = field(repr=False)
    host: str
    port: int
    fingerprint: bytes = b""

    @classmethod
    def issue(cls, host: str, port: int, fingerprint: bytes = b"") -> Ticket:
        return cls(secrets.token_hex(8), secrets.token_bytes(32), host, port, fingerprint)

    @property
    def address(self) -> str:
        """As in "10.0.0.1:5000" or "[fd00::1]:5000"."""
        return text((self.host, self.port))

    def variables(self) -> dict[str, str]:
        secured = {FINGERPRINT_VARIABLE: self.fingerprint.hex()} if self.fingerprint else {}
        return {
            JOB_VARIABLE: self.job,
            KEY_VARIABLE: self.key.hex(),
            ADDRESS_VARIABLE: self.address,
            LAUNCHED_VARIABLE: "1",
        } | secured

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Ticket:
        """Reads the variables. Raises ConfigError if some are missing or invalid; the message never shows the key."""
        try:
            host, port = parse(environment[ADDRESS_VARIABLE])
            key = bytes.fromhex(environment[KEY_VARIABLE])
            fingerprint = bytes.fromhex(environment.get(FINGERPRINT_VARIABLE, ""))
            return cls(environment[JOB_VARIABLE], key, host, port, fingerprint)
        except (KeyError, ValueError):
            names = ", ".join((JOB_VARIABLE, KEY_VARIABLE, ADDRESS_VARIABLE))
            raise ConfigError(
                f"{names} are missing or invalid on host {os.uname().nodename}; expected them as tfdistrun sets them. "
                "Only tfdistrun can start a rank's supervisor."
            ) from None
