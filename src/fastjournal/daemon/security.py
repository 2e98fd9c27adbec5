"""What may be listened on, and with which certificates.

Rules:

1. Loopback addresses and Unix sockets need neither tokens nor TLS: only this machine gets there.
2. Any other address needs both, unless the operator says `insecure`. The Workq protocol knows
   neither, so beyond loopback it is always insecure.
3. TLS is 1.2 or newer; with `client_ca` every peer must show a certificate of it.
"""

from __future__ import annotations

import ipaddress
import ssl

from fastjournal.config import Settings, TlsSettings, parse_address
from fastjournal.errors import SettingError

__all__ = ["check_exposure", "is_local", "server_context"]


def is_local(address: str) -> bool:
    """Whether only this machine can reach the address."""
    if address.startswith("unix:"):
        return True
    host = parse_address(address)[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings) -> None:
    """Refuse settings that would let strangers in."""
    if settings.insecure:
        return
    for address in settings.listen:
        if not is_local(address) and not (settings.tokens and settings.tls.certificate):
            raise SettingError(
                f"{address} is not loopback: give tokens and a TLS certificate, or say insecure",
                name="listen",
            )
    for address in settings.workq:
        if not is_local(address):
            raise SettingError(
                f"{address} is not loopback and the Workq protocol knows no tokens: say insecure",
                name="workq",
            )
    strangers = settings.web and not is_local(settings.web)
    if strangers and not (settings.tokens and settings.tls.certificate):
        raise SettingError(
            f"{settings.web} is not loopback: give tokens and a TLS certificate, or say insecure",
            name="web",
        )
    if settings.http and not is_local(settings.http):
        raise SettingError(f"{settings.http} is not loopback: say insecure", name="http")


def server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """The TLS side of a listener; None without a certificate."""
    if not tls.certificate:
        if tls.key or tls.client_ca:
            raise SettingError("TLS needs a certificate", name="tls.certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key or None)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"TLS files cannot be used: {error}", name="tls") from error
    return context
