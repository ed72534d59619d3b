"""The link to the nodes: a proxy that lets registered nodes through to Flower's fleet interface, and nothing else.

A SuperLink serves three interfaces on one port: the fleet's, which nodes need and which knows them by their keys;
the control interface, by which apps are started and nodes are registered, and which asks nobody who they are;
and the runtime interface, for the processes that it starts itself. So the SuperLink listens on loopback, where
only those with an account on its machine reach it, and nginx stands in front of it. Each address that nodes
need is named in full, and what is passed on is that address and not the one that was asked for: there is
nothing to be decoded, normalised or smuggled. Before a byte of a request's body is read, the gate (`gate`) is asked
about its headers: they carry a node's signature. Only objects may be large, and a node uploads few at a time. nginx
keeps no log of requests, and no part of one on disk.
"""

from __future__ import annotations

from pathlib import Path

from shoal import _validate
from shoal.errors import InvalidInput

FLEET = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""What an authenticated SuperNode asks for. Registration is the operator's, by the control interface."""
GATED = ("activate-node", "pull-messages", "push-messages", "get-fab")
"""What goes through the gate, which looks at requests and answers; the rest it is asked about beforehand."""
OBJECTS = "push-object"
"""The one request with a large body."""
SMALL_BODY = 1 << 20
"""Bytes that the body of any other request may have."""
LARGE_BODY = 64 << 20
"""Bytes that an object may have: a report of the largest dimension that a task may have, and what goes with it."""
UPLOADS = 4
"""Requests at a time of one node."""

CONFIGURATION = """\
# The only way to the SuperLink at {upstream}: its fleet interface, for nodes that the gate knows.
# Written by 'shoal flower proxy'.
# Start it with: nginx -e stderr -p {folder} -c {folder}/nginx.conf
pid {folder}/nginx.pid;
error_log stderr warn;
worker_processes auto;
worker_rlimit_nofile 16384;

events {{
    worker_connections 8192;
}}

http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {folder}/temporary;
    proxy_temp_path {folder}/temporary;
    fastcgi_temp_path {folder}/temporary;
    uwsgi_temp_path {folder}/temporary;
    scgi_temp_path {folder}/temporary;

    upstream gate {{
        server {gate};
        keepalive 16;
    }}

    # The end of a node's key stands for it: nginx takes no more than 255 bytes, and the beginning is that of all keys.
    map $http_flwr_public_key $node {{
        default "";
        "~(?<tail>.{{1,200}})$" $tail;
    }}

    # Strangers: few connections and few requests from one address, and no patience. Nodes: few requests at a time.
    limit_conn_zone $binary_remote_addr zone=connections:10m;
    limit_conn_zone $node zone=nodes:10m;
    limit_req_zone $binary_remote_addr zone=requests:10m rate={rate}r/s;
    limit_conn connections {connections};
    limit_conn nodes {uploads};
    limit_req zone=requests burst={burst} nodelay;
    client_header_timeout 10s;
    client_body_timeout 30s;
    send_timeout 30s;
    keepalive_timeout 75s;
    reset_timedout_connection on;

    server {{
        listen {host}:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;

        # Who is not in the gate's folder gets no further than its headers.
        auth_request /authorise;
        client_max_body_size {small};
        # Sealed reports pass through: nothing of them is written to disk.
        proxy_request_buffering off;
        proxy_max_temp_file_size 0;
        proxy_http_version 1.1;
        proxy_set_header Host localhost;
        proxy_set_header Connection "";
        proxy_read_timeout 120s;
        proxy_ssl_trusted_certificate {authority};
        proxy_ssl_verify on;
        proxy_ssl_name {name};

        location = /authorise {{
            internal;
            proxy_pass http://gate/authorise;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
        }}

{locations}

        location / {{
            return 403;
        }}
    }}
}}
"""
LOCATION = """\
        location = /v1/fleet/{word} {{
            limit_except POST {{ deny all; }}{directive}
            proxy_pass {target}/v1/fleet/{word};
        }}"""


def write_proxy(
    folder: Path,
    *,
    port: int,
    superlink: int,
    gate: int,
    certificate: Path,
    key: Path,
    authority: Path,
    host: str = "0.0.0.0",
    name: str = "localhost",
    rate: int = 100,
    connections: int = 200,
) -> Path:
    """Write nginx's configuration for a SuperLink on loopback, in a folder of its own.

    Args:
        folder: nginx's folder.
        port: the port that nodes connect to.
        superlink: the SuperLink's port on loopback.
        gate: the gate's port on loopback.
        certificate: the proxy's TLS certificate.
        key: its private key.
        authority: the authority of the SuperLink's certificate.
        host: the address to listen on.
        name: a DNS name in the SuperLink's certificate.
        rate: requests a second from one address; more where many nodes share an address.
        connections: connections from one address; more where many nodes share an address.

    Returns:
        The configuration file.

    Raises:
        InvalidInput: a file, a port or a name does not do.
    """
    # nginx wants IPv6 addresses in brackets.
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    for role, path in {"certificate": certificate, "key": key, "authority": authority}.items():
        if not path.is_file():
            raise InvalidInput(f"{role} must be a file in PEM format, got {path}")
    for role, value in {"port": port, "superlink": superlink, "gate": gate}.items():
        _validate.integer(role, value, minimum=1, maximum=65_535)
    _validate.integer("rate", rate, minimum=1, maximum=10**6)
    _validate.integer("connections", connections, minimum=1, maximum=10**6)
    home = folder.resolve()
    words = [str(home), str(certificate.resolve()), str(key.resolve()), str(authority.resolve()), host, name]
    # nginx has its own rules for quoting: what would need it is refused, or a path could become a directive.
    for word in words:
        if any(character in word for character in " ;{}\"'\\$\n\t#"):
            raise InvalidInput(f"names and paths must be without spaces, quotes and special characters, got {word!r}")
    (home / "temporary").mkdir(parents=True, exist_ok=True, mode=0o700)
    upstream = f"127.0.0.1:{superlink}"
    text = CONFIGURATION.format(
        folder=words[0],
        certificate=words[1],
        key=words[2],
        authority=words[3],
        host=host,
        name=name,
        port=port,
        upstream=upstream,
        rate=rate,
        burst=10 * rate,  # nodes behind one address answer a round at the same time
        connections=connections,
        gate=f"127.0.0.1:{gate}",
        small=SMALL_BODY,
        uploads=UPLOADS,
        locations="\n".join(_location(word, upstream) for word in FLEET),
    )
    path = home / "nginx.conf"
    path.write_text(text)
    return path


def _location(word: str, upstream: str) -> str:
    """One address of the fleet's."""
    directive = ""
    if word in GATED:
        directive = "\n            auth_request off;  # the gate itself looks"
    elif word == OBJECTS:
        directive = f"\n            client_max_body_size {LARGE_BODY};"
    return LOCATION.format(
        word=word, directive=directive, target="http://gate" if word in GATED else f"https://{upstream}"
    )
