"""Certificates for servers of the tests, good and bad, from an authority that is made for each test."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("An authority of our own")
        builder = self._builder(self._name, self._key.public_key(), days=10)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = builder.add_extension(constraints, critical=True).sign(self._key, hashes.SHA256())
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, address: str = "127.0.0.1", *, days: int = 5) -> ssl.SSLContext:
        """For a server at that address; one of a negative number of days has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = self._builder(_name(address), key.public_key(), days=days).add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        both = self._folder / "server.pem"
        both.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(both)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int) -> x509.CertificateBuilder:
        end = datetime.datetime.now(datetime.UTC) + days * _DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - 20 * _DAY)
            .not_valid_after(end)
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
