"""A fleet under a routing policy: simulated pods with real caches, a real index, a real router.

In reading order:

    workloads   what users ask for
    pace        how long a pod takes
    pod         one pod, and a fleet of them
    clock       what happens, in the order of its time
    arrivals    when requests come
    results     what came of a run
    fleet       a run of a workload under a policy
    loads       pools and rates that make a comparison fair
    comparison  every policy on one workload
"""
