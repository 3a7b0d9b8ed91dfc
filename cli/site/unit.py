"""The systemd unit of a broker. `packaging/mqmesh-broker.service` is this one for a file in /etc."""

from __future__ import annotations

NAME = "mqmesh-broker.service"
PROGRAM = "/opt/mqmesh/bin/mqmesh"
HOME = "/var/lib/mqmesh"


def unit(config: str = f"{HOME}/broker.toml") -> str:
    """The text. config: the path of the broker's file."""
    return _UNIT.format(config=config)


_UNIT = """\
[Unit]
Description=mqmesh MQTT broker
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
# The broker says when it listens; a large store may take its time.
TimeoutStartSec=infinity
ExecStart=/opt/mqmesh/bin/mqmesh broker --config {config}
# SIGHUP: reads certificates, users, rules and policies of links again. Only clients that are not allowed any more are disconnected.
ExecReload=/bin/kill -HUP $MAINPID
# SIGTERM: tells clients and neighbours; everything acknowledged is stored.
KillMode=mixed
TimeoutStopSec=30
Restart=on-failure
RestartSec=1

User=mqmesh
Group=mqmesh
StateDirectory=mqmesh
StateDirectoryMode=0700
RuntimeDirectory=mqmesh
ConfigurationDirectory=mqmesh
UMask=0077
# One descriptor a client.
LimitNOFILE=65536

NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
PrivateDevices=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# Ports below 1024 need this one; without them leave it out.
AmbientCapabilities=CAP_NET_BIND_SERVICE
CapabilityBoundingSet=CAP_NET_BIND_SERVICE

[Install]
WantedBy=multi-user.target
"""
