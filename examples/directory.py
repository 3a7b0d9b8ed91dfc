"""Register an application in a directory and find its brokers, also while the directory is away: directory.py URL ACCOUNT SECRET."""

import sys

from mqmesh.directory.client import Client
from mqmesh.directory.lookups import Lookups

url, account, secret = sys.argv[1:]

owner = Client(url)
owner.log_in(account, secret)
owner.put("mesh", "sites")
owner.put("broker", "porto", "sites", number=1, addresses=["mqtt://127.0.0.1:1883"])
owner.put("broker", "lyon", "sites", number=2, addresses=["mqtt://127.0.0.1:1884"])
owner.put("application", "gauges", "sites", alternatives=["lyon", "porto"], interval=30)
owner.log_out()

with Lookups(Client(url), fresh=30, stale=3600) as lookups:  # reading takes no account
    [gauges] = lookups.find("application", "sites", "gauges").records
    for name in gauges["alternatives"]:
        found = lookups.find("broker", "sites", name)
        print(name, *found.records[0]["addresses"], "(stale)" if found.stale else "")
