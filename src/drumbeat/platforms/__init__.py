"""From a job file to what each platform runs: render, rehearse, submit.

One module a platform, each with a `PLATFORM` (see `drumbeat.platforms.platform`), found by name
through `drumbeat.platforms.registry`.
"""
