"""TLS 1.3 between the launcher and other hosts, with a certificate for one job. Decides nothing about who may connect.

Nobody signs the certificate. Each end includes its SHA-256 fingerprint in what it proves with the key that both have
(`protocol.handshake`, or the ticket of the job), so somebody in the middle with another certificate is refused.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import selectors
import socket
import ssl
import threading
import time

from tfdist.launch.wire.call import anonymous_file, write_all
from tfdist.launch.wire.link import AGENT, RANK, Link
from tfdist.launch.wire.record import RefusedFrameError

_NO_TLS = "it does not speak TLS 1.3"
# One record of TLS: the most that OpenSSL decrypts at a time.
_RECORD_BYTES = 1 << 14
_VALID = datetime.timedelta(days=3650)
_EARLIER = datetime.timedelta(days=1)  # clocks differ


class TlsLink(Link):
    """A connection under TLS. The lock is needed because OpenSSL allows one call at a time for each connection."""

    connection: ssl.SSLSocket

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        connection.setblocking(False)
        wrapped = context.wrap_socket(connection, server_side=server, do_handshake_on_connect=False)
        super().__init__(wrapped)
        self._lock = threading.Lock()

    def shake(self) -> int:
        try:
            self.connection.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):
            raise ConnectionResetError("it closed the connection") from None
        except ssl.SSLError:
            raise RefusedFrameError(_NO_TLS) from None
        self.protocol = self.connection.selected_alpn_protocol() or ""
        return 0

    def receive(self, most: int) -> bytes:
        with self._lock:
            try:
                return self.connection.recv(most)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return b""
            except ssl.SSLError:
                raise RefusedFrameError("its bytes are not those of this TLS connection") from None

    def send(self, data: bytes | bytearray) -> int:
        with self._lock:
            try:
                return self.connection.send(data[:_RECORD_BYTES])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def fingerprint(self) -> bytes:
        """The SHA-256 of the certificate that the other end has shown."""
        shown = self.connection.getpeercert(binary_form=True)
        return hashlib.sha256(shown or b"").digest()


class Identity:
    """The launcher's certificate for one job, and its private key, which is in no file.

    Attributes:
        fingerprint: The SHA-256 of the certificate.
    """

    def __init__(self) -> None:
        certificate, key = _made()
        self.fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).digest()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.num_tickets = 0  # nobody connects twice
        self._context.set_alpn_protocols([AGENT, RANK])
        file = anonymous_file()  # the library reads certificates from files alone
        try:
            write_all(file, certificate + key)
            self._context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)

    def accept(self, connection: socket.socket) -> TlsLink:
        """The link of a connection that was accepted; its `shake` has still to be called."""
        return TlsLink(connection, self._context, server=True)


def dial(address: tuple[str, int], protocol: str, timeout_s: float, expected: bytes = b"") -> TlsLink:
    """Connects to a launcher.

    Args:
        address: Its host and port.
        protocol: `AGENT` or `RANK`.
        timeout_s: For the connection, and again for the handshake of TLS.
        expected: The fingerprint of its certificate; empty if that is checked later, before anything is sent.

    Raises:
        OSError: If it cannot be reached in this time.
        RefusedFrameError: If it does not speak TLS, or has another certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is checked instead
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([protocol])
    link = TlsLink(socket.create_connection(address, timeout_s), context, server=False)
    try:
        deadline = time.monotonic() + timeout_s
        while waits_for := link.shake():
            link.wait(waits_for, deadline)
        if expected and not hmac.compare_digest(link.fingerprint(), expected):
            raise RefusedFrameError("its certificate is not that of this job: somebody may be in between")
    except BaseException:
        link.close()
        raise
    return link


def _made() -> tuple[bytes, bytes]:
    """A self-signed certificate and its private key, in PEM."""
    # Slow to import (0.1 s), and needed only for jobs with agents.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tfdist")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    return certificate.public_bytes(pem), private
