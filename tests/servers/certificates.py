"""Self-signed certificates for test servers on the loopback interface, made by the `keytool` of Java.

    certificate = self_signed(folder)
    certificate.public  # a PEM file that a client has to trust

One certificate takes two runs of Java, about a second together.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from wheel_sched.errors import ConfigError

PASSWORD = "password-of-a-test"  # the key is used for tests only
DAYS = "30"
_TIMEOUT_S = 120.0


class Certificate(NamedTuple):
    """The files of one certificate.

    Args:
        store: key and certificate in PKCS 12 form, protected by `PASSWORD`.
        public: the certificate alone in PEM form.
    """

    store: Path
    public: Path


def self_signed(folder: Path, name: str = "localhost") -> Certificate:
    """Make a certificate for 127.0.0.1 and `localhost`, in two files of `folder` that are called `name`.

    Raises:
        ConfigError: keytool is missing, or it failed.
    """
    made = Certificate(folder / f"{name}.p12", folder / f"{name}.pem")
    store = ["-alias", name, "-keystore", str(made.store), "-storetype", "PKCS12", "-storepass", PASSWORD]
    key = ["-keyalg", "EC", "-groupname", "secp256r1", "-validity", DAYS, "-dname", f"CN={name}"]
    _keytool("-genkeypair", *store, *key, "-ext", "SAN=dns:localhost,ip:127.0.0.1")
    made.public.write_text(_keytool("-exportcert", *store, "-rfc"))
    return made


def _keytool(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["keytool", *arguments],  # of the Java on PATH, which also runs the server
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise ConfigError("certificates need keytool, which comes with Java; nothing was made") from error
    if done.returncode:
        raise ConfigError(f"keytool {arguments[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
