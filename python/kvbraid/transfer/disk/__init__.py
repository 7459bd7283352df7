"""Records as files of a directory, shared by several engines, with a limit of its bytes.

    DIR/evictor.lock                    locked by the process that evicts
    DIR/<digest of a namespace>/        32 hexadecimal digits
        <two digits of the hash>/
            <hash>-<group>-<bytes>      header and payload; `bytes` are the payload's
            .<random digits>.tmp        being written, and locked

In reading order:

    names       of folders and files, and nothing else is ever opened, or removed
    files       one record: written beside its place and renamed, or read
    folders     what a scan of names found in a folder
    tier        DiskTier: the calls of a tier, the limit, and who evicts
    inspection  a directory seen from outside: `kvbraid tier`
"""

from kvbraid.transfer.disk.inspection import TierContents, inspect_tier
from kvbraid.transfer.disk.tier import DiskCounts, DiskTier

__all__ = ["DiskCounts", "DiskTier", "TierContents", "inspect_tier"]
