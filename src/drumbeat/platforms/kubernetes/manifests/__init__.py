"""Kubernetes manifests, whoever wrote them: what is wrong in them, and their pods as processes.

One module a kind of object, each with `recognises`, `problems` and `rehearse` as
`drumbeat.platforms.platform.Platform` has them. What they read may be broken in any way.
"""
