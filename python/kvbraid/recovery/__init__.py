"""What to do when loads fail: which blocks are tainted, and where each request resumes.

Pure: nothing here reads a clock, does I/O or starts a thread. `assess` applies the resume rule to
what requests hold less what is tainted; `decide` adds policies and makes a `RecoveryPlan`.
"""
