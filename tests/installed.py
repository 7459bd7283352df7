"""What an install without extras must do, run by its own interpreter: `make test-sdist`.

The native core answers, models are read, and the command names the extra that it lacks.
"""

import subprocess
import sys
from pathlib import Path

import kvbraid
from kvbraid.cache import CacheConfig, CacheManager, Need


def main() -> None:
    """Use what is installed; an assertion says what it does not do."""
    assert Path(kvbraid.__file__).is_relative_to(sys.prefix), kvbraid.__file__
    full = kvbraid.GroupSpec(kind=kvbraid.SpecKind.FULL_ATTENTION, block_size=16)
    topology = kvbraid.Topology(groups=(full,))
    cache = CacheManager(CacheConfig(topology=topology, num_blocks=8))
    request = cache.add(list(range(40)))
    assert cache.allocate([Need(request=request, num_new_tokens=40)]).num_fit == 1
    assert kvbraid.FleetIndex().pods() == []
    command = Path(sys.executable).with_name("kvbraid")
    done = subprocess.run([command, "pods"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert done.stderr.endswith("pip install '.[serve]'\n"), done.stderr
    sys.stdout.write(f"kvbraid {kvbraid.__version__} works on Python {sys.version.split()[0]}\n")


if __name__ == "__main__":
    main()
